"""Products that end in the log-sum-exp or in the gradient, in every form that a GPU may take, against float64."""

import itertools

import pytest
import torch

joined = pytest.importorskip("maxsep.ops.fused.joined", reason="no Triton for this platform")
from maxsep.ops import launching  # noqa: E402
from maxsep.ops.fused import tile_form, triton_form  # noqa: E402
from maxsep.ops.fused.state import RowState  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SCALE = 0.7
SHAPES = ((100, 1), (100, 130), (4096, 1000), (1000, 14_353))


def has_copy_engine():
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


@pytest.fixture(params=["tiles", "hopper"])
def form(request, monkeypatch):
    """Both forms where both can run: Hopper's own only on its GPUs, and with a Triton that was tried with it."""
    if not has_copy_engine():
        pytest.skip("no copy engine")
    chosen = tile_form if request.param == "tiles" else joined._hopper_form(torch.device("cuda", 0))
    if chosen is None:
        pytest.skip("no Hopper GPU, or a Triton that was not tried with it")
    monkeypatch.setattr(joined, "form_of", lambda x, **asked: chosen)
    return chosen


def options_of(count, width):
    """Every set of options for short rows; none, all and some for the longest."""
    some = {3: ("000", "111", "001", "100"), 5: ("00000", "11111", "00010", "10001", "01110")}[count]
    if width == 64:
        return list(itertools.product((False, True), repeat=count))
    return [tuple(letter == "1" for letter in word) for word in some]


def problem(batch, size, width, dtype):
    def random(*shape):
        return torch.randn(*shape, device="cuda")

    x, w = random(batch, width).to(dtype) / 3, random(size, width).to(dtype) / 3
    return x, w, random(size), torch.rand(size, device="cuda"), torch.randint(0, size, (batch,), device="cuda")


def off(found, wanted):
    return float(((found.double() - wanted).abs() / (1 + wanted.abs())).max())


def accumulated(batch, size, width, dtype, options, chunks):
    """Values and their errors, over several chunks; what the state held before must not be read."""
    with_offset, with_weight, with_total = options
    x, w, offset, weight, target = problem(batch, size, width, dtype)
    state = RowState.room(joined.parts(x), batch, torch.empty(0, device="cuda"), with_total=with_total)
    for numbers in (state.most, state.sum, state.target, state.total):
        if numbers is not None:
            numbers.fill_(torch.nan)
    launch = joined.accumulating(x, target, state, SCALE)
    for start, stop in itertools.pairwise(sorted({size * i // chunks // 8 * 8 for i in range(chunks)} | {size})):
        cut = slice(start, stop)
        launch(w[cut], offset[cut] if with_offset else None, weight[cut] if with_weight else None, start)
    z = SCALE * (x.double() @ w.double().T) + (offset if with_offset else 0)
    lse, own, total = state.merged()
    errors = [off(lse, z.logsumexp(1)), off(own, z.gather(1, target[:, None])[:, 0])]
    if with_total:
        errors.append(off(total, z @ weight.double() if with_weight else z.sum(1)) / 30)  # a sum without sign
    return errors


@pytest.mark.parametrize("width", [64, 192, 512])
def test_log_sum_exp(form, width):
    torch.manual_seed(0)
    for number, options in enumerate(options_of(3, width)):
        dtype = torch.float16 if number == 1 else torch.bfloat16
        for batch, size in SHAPES:
            chunks = 1 if size < 1000 else 1 + number % 3
            errors = accumulated(batch, size, width, dtype, options, chunks)
            assert max(errors) < 1e-5, (batch, size, options, errors)


def differentiated(batch, size, width, dtype, options, start):
    """Errors of the gradient and of its sums over samples; nothing beyond the padded row may be written."""
    with_offset, with_weight, smooth, shifts, with_columns = options
    x, w, offset, weight, target = problem(batch, size, width, dtype)
    target = target + start // 2  # some are in another chunk
    z = SCALE * (x.double() @ w.double().T) + (offset if with_offset else 0)
    rows = [torch.randn(batch, device="cuda") for _ in range(4)]
    factors = (z.logsumexp(1).float(), rows[0], rows[1], rows[2] if smooth else None, rows[3] if shifts else None)
    padded = -(-size // 8) * 8
    room = torch.full((batch, padded + 8), 7.0, dtype=dtype, device="cuda")
    columns = torch.full((size,), torch.nan, device="cuda") if with_columns else None
    parts = offset if with_offset else None, weight if with_weight else None
    joined.differentiating(x, target, factors, SCALE)(w, room[:, :size], *parts, start, columns)
    lse, a, u, v, moved = (None if factor is None else factor.double()[:, None] for factor in factors)
    g = a * (z - lse).exp() - u * (torch.arange(size, device="cuda") + start == target[:, None])
    if smooth:
        g -= v * weight if with_weight else v
    assert bool((room[:, padded:] == 7).all())
    errors = [off(columns, SCALE * g.sum(0))] if with_columns else [0.0]
    return [*errors, off(room[:, :size], SCALE * (g + moved if shifts else g)) / 500]  # rounded to half precision


@pytest.mark.parametrize("width", [64, 192, 512])
def test_gradient(form, width):
    torch.manual_seed(0)
    for number, options in enumerate(options_of(5, width)):
        dtype = torch.float16 if number == 1 else torch.bfloat16
        for batch, size in SHAPES:
            errors = differentiated(batch, size, width, dtype, options, number % 2 * 40)
            assert max(errors) < 1e-5, (batch, size, options, errors)


def test_a_pointer_that_is_not_aligned_is_compiled_for(form):
    x, w, offset, _, target = problem(256, 1024, 128, torch.bfloat16)
    offset = torch.cat([offset, offset])
    found = []
    for first in (0, 1, 4, 3):
        state = RowState.room(joined.parts(x), 256, torch.empty(0, device="cuda"), with_total=False)
        launch = joined.accumulating(x, target, state, 1.0)
        for _ in range(2):  # the second goes directly to what was compiled
            launch(w, offset[first : first + 1024], None, 0)
        z = x.double() @ w.double().T + offset[first : first + 1024]
        found.append(off(state.merged()[0], z.logsumexp(1)))
    assert max(found) < 1e-5


def test_the_second_launch_does_not_ask_triton(form, monkeypatch):
    x, w, _, _, target = problem(256, 1024, 128, torch.bfloat16)
    state = RowState.room(joined.parts(x), 256, torch.empty(0, device="cuda"), with_total=False)
    launch = joined.accumulating(x, target, state, 1.0)
    launch(w, None, None, 0)
    if not launching.is_known():
        pytest.skip("a Triton that was not tried")
    monkeypatch.setattr(type(form.accumulate_product), "run", None)
    launch(w, None, None, 0)
    assert off(state.merged()[0], (x.double() @ w.double().T).logsumexp(1)) < 1e-5


@pytest.fixture(params=["tiles", "hopper"])
def tail_form(request, monkeypatch):
    """Both forms of the gradient of the last classes' rows, as above."""
    if not has_copy_engine():
        pytest.skip("no copy engine")
    chosen = tile_form if request.param == "tiles" else joined._hopper_form(torch.device("cuda", 0))
    if chosen is None:
        pytest.skip("no Hopper GPU, or a Triton that was not tried with it")
    monkeypatch.setattr(triton_form, "form_of_tail", lambda x: chosen)
    return chosen


def rows_differentiated(batch, size, width, dtype, options, start, wide):
    """Errors of the gradient in the place of the rows, in units of what rounding may do, and of sums over samples."""
    with_offset, with_weight, smooth, shifts, with_columns = options
    x, w, offset, weight, target = problem(batch, size, width, dtype)
    target = target + start // 2  # some are of other classes
    target[::7] = -100
    z = SCALE * (x.double() @ w.double().T) + (offset if with_offset else 0)
    parts = [torch.randn(batch, device="cuda") for _ in range(4)]
    factors = (z.logsumexp(1).float(), parts[0], parts[1], parts[2] if smooth else None, parts[3] if shifts else None)
    room = torch.full((size + 100, width), 7.0, dtype=torch.float32 if wide else dtype, device="cuda")
    gradient = room[30 : 30 + size]
    rows = gradient.view(dtype)[:, :width]  # in the first half of every row where that is wider
    rows.copy_(w)
    columns = torch.full((size,), torch.nan, device="cuda") if with_columns else None
    of_classes = offset if with_offset else None, weight if with_weight else None
    triton_form.weight_gradients(x, rows, gradient, target, factors, SCALE, *of_classes, start, columns)
    lse, a, u, v, moved = (None if factor is None else factor.double()[:, None] for factor in factors)
    g = a * (z - lse).exp() - u * (torch.arange(size, device="cuda") + start == target[:, None])
    if smooth:
        g -= v * weight if with_weight else v
    shifted = SCALE * (g + moved if shifts else g)
    assert bool((room[:30] == 7).all() and (room[30 + size :] == 7).all())
    eps = torch.finfo(dtype).eps
    exact, most = shifted.T @ x.double(), eps * (shifted.abs().T @ x.double().abs()) + 1e-4
    errors = [float(((gradient - exact).abs() / (most + eps * exact.abs())).max())]
    if with_columns:
        errors.append(float(((columns - SCALE * g.sum(0)).abs() / (1e-5 * (1 + g.abs().sum(0)))).max()))
    return errors


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [128, 256, 512])
def test_gradient_of_the_last_rows(tail_form, width, wide):
    torch.manual_seed(0)
    for number, options in enumerate(options_of(5, 64 if width == 128 else width)):
        dtype = torch.float16 if number == 1 else torch.bfloat16
        for batch, size in ((1, 1), (100, 130), (4096, 8448), (1000, 8500)):
            errors = rows_differentiated(batch, size, width, dtype, options, number % 2 * 40, wide)
            assert max(errors) < 1, (batch, size, options, errors)


def test_the_gradient_of_the_last_rows_is_the_same_every_time(tail_form):
    x, w, _, _, target = problem(4096, 8448, 512, torch.bfloat16)
    ones = torch.ones(4096, device="cuda")
    found = [torch.empty_like(w) for _ in range(20)]
    for out in found:
        triton_form.weight_gradients(x, w, out, target, (9 * ones, ones, ones, None, None), 1.0, None, None, 0, None)
    assert all(torch.equal(out, found[0]) for out in found)
