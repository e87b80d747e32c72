"""What the kernels for Hopper are compiled for: it fits on a processor, and groups never wait for each other's ring."""

import json
from pathlib import Path

import pytest
import torch

hopper_form = pytest.importorskip("maxsep.ops.fused.hopper_form", reason="no Triton for this platform")

ROOT = Path(__file__).parents[3]
WIDTHS = range(64, 513, 64)
KINDS = [
    (forward, per_class, columns)
    for forward in (True, False)
    for per_class in (False, True)
    for columns in ([False] if forward else [False, True])
]


@pytest.fixture(params=WIDTHS)
def width(request):
    return request.param


def suits(features, forward, per_class):
    return hopper_form.suits(torch.empty(3, features), forward=forward, per_class=per_class)


@pytest.mark.parametrize(("forward", "per_class"), [(True, False), (False, False), (False, True)])
def test_samples_of_whole_slices_suit_if_they_fit(forward, per_class):
    assert [width for width in WIDTHS if not suits(width, forward, per_class)] == ([128] if forward else [])
    assert not any(suits(width, forward, per_class) for width in (0, 8, 32, 100, 520, 576, 1024))


def test_it_suits_where_the_record_has_it_as_the_faster_form():
    record = json.loads((ROOT / "results" / "product_forms_gpu.json").read_text())["results"]
    shapes = {f"4096 samples, {width} features, 14336 classes": width for width in (64, 128, 256, 512)}
    for shape, width in shapes.items():
        for what, row in record[shape]["hopper"].items():
            faster = row["tflops"] > record[shape]["tiles"][what]["tflops"]
            assert suits(width, what.startswith("log-sum-exp"), "offset" in what) == faster, (shape, what)


def test_what_it_says_of_its_speed_is_in_the_record():
    record = json.loads((ROOT / "results" / "product_forms_gpu.json").read_text())["results"]

    def rate(width, form, what):
        return f"{record[f'4096 samples, {width} features, 14336 classes'][form][what]['tflops']:.0f}"

    told = " ".join(hopper_form.suits.__doc__.split())
    assert f"with 128 features it has {rate(128, 'hopper', 'log-sum-exp')} TFLOP/s beside" in told
    for width in (128, 256):
        here, there = (rate(width, form, "log-sum-exp, offset") for form in ("hopper", "tiles"))
        assert f"{here} beside {there}" in told
    told = " ".join(hopper_form.hopper.__doc__.split())
    rates = {form: [rate(512, form, what) for what in ("log-sum-exp", "gradient")] for form in ("hopper", "tiles")}
    assert "{} TFLOP/s with the log-sum-exp, {} with the gradient".format(*rates["hopper"]) in told
    assert "beside {} and {} of `products.py`".format(*rates["tiles"]) in told
    assert f"and {rate(512, 'torch.mm', 'product')} of cuBLAS" in told
    assert f"the log-sum-exp with an offset has {rate(512, 'hopper', 'log-sum-exp, offset')}" in told


@pytest.mark.parametrize(("forward", "per_class", "columns"), KINDS)
def test_turns_are_equal_and_find_their_slices_in_the_ring(width, forward, per_class, columns):
    options = hopper_form.options(width, forward=forward, per_class=per_class, columns=columns)
    slices, stages, turn, held = width // 64, options["STAGES"], options["TURN"], options["HELD"]
    assert options["WIDTH"] == width
    assert slices % turn == 0
    assert turn <= stages
    assert stages >= 2  # a slice is given back when the one after it is under way
    assert held == min(slices, 4 if per_class else 8)
    assert turn == slices or stages < slices  # a whole tile where the ring has room


@pytest.mark.parametrize(("forward", "per_class", "columns"), KINDS)
def test_shared_memory_is_enough(width, forward, per_class, columns):
    options = hopper_form.options(width, forward=forward, per_class=per_class, columns=columns)
    stages, half = options["STAGES"], 2  # bytes of a number
    ring = stages * 128 * 64 * half
    kept = 128 * (width - 64 * options["HELD"]) * half
    results = 0 if forward else 2 * 64 * 128 * half
    sums = 2 * 4 * 128 * 4 if columns else 0  # of two groups of four warps, in float32
    barriers = 8 * (2 * stages + 2)
    taken = ring + kept + results + sums + barriers
    assert taken <= 227 * 1024
    assert stages == 14 or taken + 128 * 64 * half > 227 * 1024 - 1024  # and not much of it idle


@pytest.mark.parametrize("width", [128, 256, 512])
def test_the_gradient_of_the_last_classes_fits(width):
    options = hopper_form.tail_options(width)
    rows, stages, buffers, held = (options[name] for name in ("ROWS", "STAGES", "BUFFERS", "HELD"))
    assert hopper_form.suits_tail(torch.empty(3, width))
    assert stages >= 3  # else the groups would wait for each other
    assert buffers >= 2
    assert held == min(width // 64, 6)
    ring, gradients, kept = 2 * stages * rows * width, 2 * buffers * rows * 64, 2 * 64 * (width - 64 * held)
    barriers, numbers = 8 * 2 * (2 * stages + buffers), 4 * 6 * rows
    taken = ring + gradients + kept + barriers + numbers
    assert taken <= 227 * 1024
    assert stages == 12 or taken + 2 * rows * width > 227 * 1024


def test_rows_of_which_a_half_is_no_factor_of_products_are_not_taken_for_the_last_classes():
    others = {*range(8, 1025, 8)} - {128, 256, 512}
    assert not any(hopper_form.suits_tail(torch.empty(3, width)) for width in others)


def test_both_forms_take_the_same_classes_at_once():
    tile_form = pytest.importorskip("maxsep.ops.fused.tile_form")
    assert tile_form.CLASSES == hopper_form.CLASSES


def test_blocks_are_those_that_the_kernels_take():
    for forward in (True, False):
        samples, classes, gradients = hopper_form.blocks(forward=forward)
        assert (samples, classes, gradients) == ([[128, 64], [64, 64]], [128, 64], [64, 128])
        assert hopper_form.programs_at_once(forward=forward) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_matrices_lie_in_shared_memory_as_the_matrix_units_want_it(dtype):
    matrix = torch.empty(300, 136, dtype=dtype)[:, :128]
    for block in ([128, 64], [64, 64], [64, 128]):
        found = hopper_form.described(matrix, block)
        assert found.base is matrix
        assert (found.shape, found.strides, found.block_shape) == ([300, 128], [136, 1], block)
        assert (found.layout.swizzle_byte_width, found.layout.element_bitwidth) == (128, 16)
