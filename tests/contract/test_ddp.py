"""Two real processes over gloo train every head as one process does."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from maxsep import heads

SCRIPT = Path(__file__).with_name("two_heads_ddp.py")


@pytest.mark.distributed
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen([sys.executable, SCRIPT, str(rank), port, tmp_path], stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    for process in processes:
        _, told = process.communicate(timeout=240)
        assert process.returncode == 0, told
    for rank in (0, 1):
        result = torch.load(tmp_path / f"{rank}.pt")
        for name in heads.names():
            for key, value in result["alone"][name].items():
                found = result["together"][name][key]
                torch.testing.assert_close(found, value, atol=1e-12, rtol=1e-12, msg=f"{name}: {key}")
