"""How the products of other GPUs than Hopper are launched: each way by its own tile."""

import pytest
import torch

tile_form = pytest.importorskip("maxsep.ops.fused.tile_form", reason="no Triton for this platform")
hopper_form = pytest.importorskip("maxsep.ops.fused.hopper_form")

TILES = {"FORWARD_TILE": (True, 64, 128), "BACKWARD_TILE": (False, 128, 256)}


@pytest.fixture(params=TILES)
def tile(request, monkeypatch):
    """One way with a tile that the other does not have."""
    forward, rows, cols = TILES[request.param]
    monkeypatch.setattr(tile_form, request.param, {"ROWS": rows, "COLS": cols, "INNER": 32, "num_warps": 4})
    return forward, rows, cols


def test_the_copy_engine_takes_a_tile_and_half_of_one_back(tile):
    forward, rows, cols = tile
    assert tile_form.blocks(forward=forward) == ([[rows, 32]], [cols, 32], [rows, cols // 2])
    assert tile_form.blocks(forward=not forward) == ([[128, 64]], [128, 64], [128, 64])


def test_two_programs_share_a_processor_if_their_accumulators_fit(tile):
    forward, rows, cols = tile
    assert tile_form.programs_at_once(forward=forward) == (2 if rows * cols <= 128 * 128 else 1)
    assert tile_form.programs_at_once(forward=not forward) == 2


def test_kernels_are_compiled_for_their_tile_and_all_features(tile):
    forward, rows, cols = tile
    for per_class, columns in ((False, False), (True, True)):
        found = tile_form.options(200, forward=forward, per_class=per_class, columns=columns)
        assert found == {"WIDTH": 200, "ROWS": rows, "COLS": cols, "INNER": 32, "num_warps": 4}


def test_a_matrix_is_described_as_it_lies():
    matrix = torch.empty(300, 136, dtype=torch.bfloat16)[:, :128]
    found = tile_form.described(matrix, [128, 64])
    assert found.base is matrix
    assert (found.shape, found.strides, found.block_shape) == ([300, 128], [136, 1], [128, 64])


def test_constants_are_those_that_the_kernels_name():
    for form in (tile_form, hopper_form):  # what a launch adds to them is said by `joined`
        for forward, kernel in ((True, form.accumulate_product), (False, form.gradient_product)):
            named = {name for name in kernel.arg_names if name.isupper()}
            found = form.options(512, forward=forward, per_class=False, columns=False)
            added = {"OFFSET", "WEIGHT"} | ({"TOTAL"} if forward else {"SMOOTH", "SHIFT", "COLUMNS"})
            assert named == added | {name for name in found if name.isupper()}
