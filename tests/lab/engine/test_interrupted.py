import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("interrupted_run.py")


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--compile"]], ids=["plain", "compiled"])
def test_a_dozen_kills_change_no_bit_and_forgotten_state_would(tmp_path, options):
    # one process compiles; all others take the program from the cache on disk
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, *options], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    # ten from a seeded random clock, one inside a save, one just before the short last batch
    assert told["kills"] == 12
    assert told["resumed"] >= 6  # so many processes came as far as a resume point of their own
    assert told["compiled"] is bool(options)
    assert told["left"] == ["metrics.jsonl", "result.json", "spec.json", "weights.safetensors"]
    assert told["killed"] == {"weights": True, "rows": True, "metrics": True}
    # the test would notice: without the random states, or from the start of the epoch, the weights are others
    assert told["random"]["weights"] is False
    assert told["position"]["weights"] is False
