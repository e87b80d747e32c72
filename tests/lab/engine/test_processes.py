"""Real processes: runs that are killed a dozen times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--compile"]], ids=["plain", "compiled"])
def test_a_dozen_kills_change_no_bit_and_forgotten_state_would(tmp_path, options):
    # one process compiles; all others take the program from the cache on disk
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, Path(__file__).with_name("interrupted_run.py"), tmp_path, *options]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | cache, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # ten kills come after numbers of steps drawn by a seed, one inside a save, one just before the short last batch
    assert found["resumed"] >= 6  # so many processes reached a resume point of their own
    assert found["compiled"] is bool(options)
    assert found["left"] == ["MANIFEST.json", "metrics.jsonl", "result.json", "spec.json", "weights.safetensors"]
    assert found["killed"] == {"weights": True, "rows": True, "metrics": True}
    # without the random states, or from the start of the epoch, the weights differ
    assert found["random"]["weights"] is False
    assert found["position"]["weights"] is False
