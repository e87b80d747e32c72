"""What the interpreter cannot show: the kernels compile for a GPU and move padded rows 16 bytes at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="no Triton for this platform")


def test_kernels_compile_for_a_gpu_and_move_wide_words(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_kernels.py")
    told = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-3000:]
    found = json.loads(told.stdout)
    assert len(found) == 9
    for name in ("forward fp32", "forward bf16", "adjoint fp32", "adjoint bf16"):
        moved = {key: number for key, number in found[name].items() if "global" in key}
        assert set(moved) == {"ld.global.v4.b32", "st.global.v4.b32"}, name
    assert "ld.global.v4.b32" in found["partial sums"]
    assert "st.global.v4.b32" in found["loss backward"]
