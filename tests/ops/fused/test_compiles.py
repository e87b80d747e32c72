"""The kernels whose tiles come by the copy engine compile for a GPU that has one, without one being here."""

import os
import subprocess
import sys

import pytest

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maxsep.ops.fused import product_kernels, triton_form

def compiled(kernel, tile, types, **constants):
    options = {name: tile[name] for name in ("num_warps", "num_stages")}
    constants |= {name: value for name, value in tile.items() if name not in options}
    types |= dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "*fp32") for name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    result = triton.compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", 90, 32), options=options)
    assert "wgmma" in result.asm["ptx"]
    print(result.metadata.shared)

numbers = dict.fromkeys(("start", "size", "batch", "splits", "programs"), "i32") | {"target": "*i64"}

def through(*shape):
    return f"tensordesc<bf16[{shape[0]},{shape[1]}]>"

for kernel, tile, flags in (
    (product_kernels.accumulate_product, triton_form.FORWARD_TILE, ("OFFSET", "WEIGHT", "TOTAL")),
    (product_kernels.gradient_product, triton_form.BACKWARD_TILE, ("OFFSET", "WEIGHT", "SMOOTH", "COLUMNS")),
):
    rows, cols, inner = (tile[name] for name in ("ROWS", "COLS", "INNER"))
    descriptors = {"x": through(rows, inner), "w": through(cols, inner), "out": through(rows, cols)}
    compiled(kernel, tile, numbers | descriptors, WIDTH=512, **dict.fromkeys(flags, True))
"""


@pytest.mark.slow
def test_for_a_hopper_gpu(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    told = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-2000:]
    shared = [int(line) for line in told.stdout.split()]
    assert len(shared) == 2
    assert max(shared) <= 232_448  # what one program may take of a multiprocessor
