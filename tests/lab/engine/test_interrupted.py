import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("interrupted_run.py")


def report(folder, *options):
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, *options], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_dozen_kills_change_no_bit_and_forgotten_state_would(tmp_path):
    told = report(tmp_path)
    # ten from a seeded random clock, one inside a save, one just before the short last batch
    assert told["kills"] == 12
    assert told["resumed"] >= 3
    assert told["left"] == ["metrics.jsonl", "result.json", "spec.json", "weights.safetensors"]
    assert told["killed"] == {"weights": True, "rows": True, "metrics": True}
    # the test would notice: without the random states, or from the start of the epoch, the weights are others
    assert told["random"]["weights"] is False
    assert told["position"]["weights"] is False


@pytest.mark.slow
def test_a_kill_changes_no_bit_of_a_compiled_run(tmp_path):
    told = report(tmp_path, "--compile")
    assert told["kills"] == 1
    assert told["resumed"] == 1
    assert told["killed"] == {"weights": True, "rows": True, "metrics": True}
