import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("two_processes.py")


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_go_on_where_one_stopped_and_take_the_same_path(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["dtype"] == "torch.float64"
    assert told["devices"] == 2
    assert told["resumed"] == 1
    assert told["difference"] <= 1e-12
