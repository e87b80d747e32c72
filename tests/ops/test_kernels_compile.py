"""What the interpreter cannot show: every launch compiles for a GPU, fits its registers, and moves wide words."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="no Triton for this platform")
pytestmark = pytest.mark.nightly


def compiled_for(capability, folder):
    """Compile in a process of its own, since Triton keeps to the first kind of GPU that it sees."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    command = [sys.executable, Path(__file__).with_name("compile_kernels.py"), str(capability)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout)


@pytest.fixture(scope="module")
def hopper(tmp_path_factory):
    return compiled_for(90, tmp_path_factory.mktemp("compiled"))


def launches(results, start=""):
    return [launch for name, found in results.items() if name.startswith(start) for launch in found]


def test_every_kernel_is_launched(hopper):
    assert {launch["kernel"] for launch in launches(hopper)} == {
        "separate_rows", "partial_sums", "block_stats", "finish_rows", "scale_elements",
        "lse_kernel", "grad_kernel", "merge_kernel",
    }  # fmt: skip


def test_no_kernel_runs_out_of_registers(hopper):
    assert not [(name, launch) for name in hopper for launch in hopper[name] if launch["stack"]]


@pytest.mark.parametrize("kernels", ["tile_kernels", "hopper_kernels"])
def test_products_use_the_matrix_units_and_the_copy_engine(hopper, kernels):
    products = [launch for launch in launches(hopper, kernels) if launch["kernel"] != "merge_kernel"]
    assert {launch["kernel"] for launch in products} == {"lse_kernel", "grad_kernel"}
    assert all(launch["wgmma"] and launch["copies"] for launch in products)


@pytest.mark.parametrize("start", ["separate, 1024 rows of 100000", "separate, transposed", "rows"])
def test_rows_move_in_words_of_16_bytes(hopper, start):
    found = launches(hopper, start)
    assert found
    assert {launch["words"] for launch in found} == {128}


@pytest.mark.parametrize("capability", [100, 120])
def test_later_gpus(capability, tmp_path):
    """That a program fits into shared memory there is asserted when it is compiled."""
    results = compiled_for(capability, tmp_path)
    assert {launch["kernel"] for launch in launches(results)} == {"lse_kernel", "grad_kernel", "merge_kernel"}
    assert not [(name, launch) for name in results for launch in results[name] if launch["stack"]]
