"""What the interpreter cannot show: every launch compiles for a GPU, and padded rows move 16 bytes at a time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="no Triton for this platform")


def compiled_for(kind, folder):
    """Every launch and what became of it; a process of its own, since Triton keeps to the first kind of GPU it sees."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder)}
    script = Path(__file__).with_name("compile_kernels.py")
    told = subprocess.run([sys.executable, script, str(kind)], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-3000:]
    return json.loads(told.stdout)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return compiled_for(90, tmp_path_factory.mktemp("compiled"))


def test_every_kernel_is_launched(found):
    names = {launch["kernel"] for launches in found.values() for launch in launches}
    assert names == {
        "forward", "adjoint", "partial_sums", "backward", "total", "block_sums", "scan_blocks", "fold_rows",
        "adjoint_rows", "accumulate_rows", "gradient_rows", "accumulate_product", "gradient_product",
        "pad", "reflect", "merge_parts", "last_logits", "last_gradients", "weight_gradients",
        "reduce_rows", "spread_rows",
    }  # fmt: skip


def test_padded_rows_move_in_wide_words(found):
    for way in ("forward", "adjoint"):
        for dtype in ("torch.float32", "torch.bfloat16"):
            (launch,) = found[f"{way}, 1024 rows of 100000, {dtype}"]
            assert set(launch["moved"]) == {"ld.global.v4.b32", "st.global.v4.b32"}, (way, dtype)
        sums, _ = found[f"{way}, 2 rows of 100000, torch.bfloat16"]  # few rows are shared
        assert "ld.global.v4.b32" in sums["moved"]
    for way in ("forward", "adjoint"):
        (launch,) = found[f"{way}, padded"]
        assert set(launch["moved"]) == {"ld.global.v4.b32", "st.global.v4.b32"}, way
    for padding in (0, 1):
        *_, backward = found[f"loss, 1024 rows of 1000, mean, padding {padding}"]
        assert {"ld.global.v4.b32", "st.global.v4.b32"} <= set(backward["moved"])


@pytest.mark.parametrize("way", ["householder", "householder adjoint"])
def test_rows_of_the_householder_basis_move_in_wide_words_and_fit_in_the_registers(found, way):
    wide, one = {"ld.global.v4.b32", "st.global.v4.b32"}, {"ld.global.b16", "ld.global.b32"}
    for rows in ("1000, torch.float32", "10000, torch.bfloat16", "32768, torch.float32", "100000, torch.bfloat16"):
        (launch,) = found[f"{way}, 1024 rows of {rows}"]
        assert launch["stack"] == 0
        assert wide <= set(launch["moved"]) <= wide | one, rows
        assert sum(launch["moved"].get(word, 0) for word in one) == ("adjoint" in way)  # its last number by itself
    sums, share = found[f"{way}, 2 rows of 100000, torch.bfloat16"]  # few rows are shared
    assert sums["kernel"] == "partial_sums"
    assert wide <= set(share["moved"])
    (padded,) = found[f"{way}, padded"]
    assert wide <= set(padded["moved"]) <= wide | one
    _, transposed = found["householder, transposed"]
    assert wide <= set(transposed["moved"])


@pytest.mark.parametrize("shape", ["999 x 2048, torch.bfloat16", "999 x 2048, None", "1001 x 33, torch.bfloat16"])
def test_a_layer_is_padded_by_one_launch_in_wide_words(found, shape):
    (launch,) = found[f"layer, {shape}"]
    assert {"ld.global.v4.b32", "st.global.v4.b32"} <= set(launch["moved"])
    assert launch["stack"] == 0


STREAMED = [(5000, ""), (5000, ", plain"), (5000, ", householder"), (5001, ", householder")]
PRODUCTS = {"accumulate_product", "gradient_product"}
OF_HOPPER, OF_OTHERS = "maxsep.ops.kernels.hopper", "maxsep.ops.kernels.products"
TAIL_OF_HOPPER, TAIL_OF_OTHERS = "maxsep.ops.kernels.hopper_tail", "maxsep.ops.kernels.weight_gradients"


@pytest.mark.parametrize(("form", "module"), [("stream", OF_HOPPER), ("tiles", OF_OTHERS)])
@pytest.mark.parametrize(("num_classes", "which"), STREAMED)
def test_half_precision_products_use_the_matrix_units_without_waiting(found, num_classes, which, form, module):
    launches = found[f"{form}, {num_classes} classes, torch.bfloat16{which}"]
    products = [launch for launch in launches if launch["wgmma"]]
    assert {launch["kernel"] for launch in products} == PRODUCTS
    for launch in products:  # Hopper's own log-sum-exp is the slower with numbers of classes and short rows
        slower = launch["kernel"] == "accumulate_product" and "OFFSET" in launch["options"]
        assert launch["module"] == (OF_OTHERS if slower else module)
    assert all(launch["products ahead"] and launch["copies ahead"] for launch in products)
    others = [launch["kernel"] for launch in launches if not launch["wgmma"]]
    if which:  # nothing is folded, nothing taken back
        alone = ["block_sums", "last_logits", "merge_parts", "last_gradients"]
        assert others == (alone if "householder" in which else ["merge_parts"])


def test_running_sums_load_ahead_in_wide_words(found):
    names = {"block_sums", "fold_rows", "adjoint_rows"}
    launches = [launch for launch in found["stream, 5000 classes, torch.bfloat16"] if launch["kernel"] in names]
    assert {launch["kernel"] for launch in launches} == names
    # what takes all of a block at once has nothing to send ahead
    assert all(launch["copies ahead"] for launch in launches if launch["stages"] != 1)
    assert {launch["stages"] for launch in launches} == {1, 3}
    stores = [set(launch["moved"]) for launch in launches if launch["kernel"] != "block_sums"]
    assert all("st.global.v4.b32" in moved for moved in stores), stores


def test_the_gradient_of_the_last_classes_is_made_by_the_matrix_units_with_samples_on_their_way(found):
    *_, launch = found["tiles, a tail"]
    assert launch["module"] == TAIL_OF_OTHERS
    assert launch["wgmma"]
    assert launch["copies ahead"]


@pytest.mark.parametrize("which", ["4096 samples, mean", "70 samples, mean", "1 samples, sum"])
def test_losses_become_one_number_by_one_launch_each_way(found, which):
    launches = found[f"reduction, {which}"]
    assert [launch["kernel"] for launch in launches] == ["reduce_rows", "spread_rows"]
    assert not any(launch["stack"] for launch in launches)


def test_the_gradient_of_the_last_classes_of_hopper_shares_registers_and_has_enough(found):
    launches = [launch for launches in found.values() for launch in launches if launch["module"] == TAIL_OF_HOPPER]
    assert len(launches) == 4
    assert {launch["kernel"] for launch in launches} == {"weight_gradients"}
    assert {len(launch["options"]) for launch in launches} >= {0, 5}  # none of them, and all
    for launch in launches:
        assert launch["wgmma"]
        assert launch["shares registers"]
        assert launch["products ahead"]
        assert launch["copies ahead"]
        assert launch["stack"] == 0
        assert launch["shared"] <= 227 * 1024
        assert "ld.global.b16" not in launch["moved"]  # rows of W' in pairs


def test_rows_that_are_too_long_for_the_products_of_hopper_take_the_others(found):
    products = [launch for launch in found["tiles, 576 features"] if launch["kernel"] in PRODUCTS]
    assert {launch["module"] for launch in products} == {OF_OTHERS}
    assert all(launch["wgmma"] for launch in products)


def test_products_of_hopper_share_registers_and_fit(found):
    products = [launch for launches in found.values() for launch in launches if launch["module"] == OF_HOPPER]
    assert {launch["kernel"] for launch in products} == PRODUCTS
    assert all(launch["wgmma"] and launch["shares registers"] for launch in products)
    assert max(launch["shared"] for launch in products) <= 227 * 1024
    of_classes = [bool({"OFFSET", "WEIGHT"} & set(launch["options"])) for launch in products]
    assert set(of_classes) == {False, True}
    for launch, per_class in zip(products, of_classes, strict=True):
        assert launch["stack"] <= (32 if per_class else 16), launch


def test_what_goes_directly_is_asked_for_once(found):
    """That Triton would have chosen the same again is asserted when it is launched."""
    launches = [launch for launches in found.values() for launch in launches if launch["module"] == OF_HOPPER]
    assert {launch["kernel"] for launch in launches if launch["direct"]} == PRODUCTS
    assert {launch["kernel"] for launch in launches if not launch["direct"]} == PRODUCTS


@pytest.mark.parametrize("kind", [100, 120])
def test_what_is_too_large_for_later_kinds_is_not_launched_there(kind, tmp_path):
    """That a program fits into shared memory is asserted when it is compiled."""
    found = compiled_for(kind, tmp_path)
    assert found["stream, 256 features"][-1]["kernel"] == "weight_gradients"
    assert "weight_gradients" not in {launch["kernel"] for launch in found["stream, 512 features"]}
    modules = {launch["module"] for launches in found.values() for launch in launches if launch["kernel"] in PRODUCTS}
    assert modules == {OF_OTHERS}


def test_no_program_of_the_streamed_loss_runs_out_of_registers(found):
    launches = [launch for what in found if what.startswith(("stream", "tiles")) for launch in found[what]]
    assert len(launches) > 15
    others = [launch for launch in launches if launch["module"] != OF_HOPPER]  # of which more is said above
    assert not [launch["kernel"] for launch in others if launch["stack"]]
