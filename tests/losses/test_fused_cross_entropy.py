"""The fused loss is F.cross_entropy of the head's logits, in value and every gradient, for every option."""

import copy
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maxsep import MaxSeparationHead, heads
from maxsep.losses import LogitAdjustedLoss, fused_cross_entropy
from maxsep.ops import padding

HEADS = {
    "maxsep": lambda d, c, bias: MaxSeparationHead(d, c, 0.7, bias),
    "plain": lambda d, c, bias: heads.PlainHead(d, c, bias=bias),
    "scaled": lambda d, c, bias: heads.ScaledHead(d, c, 0.3, bias),
    "linear": lambda d, c, bias: nn.Linear(d, c, bias),
}

both_bases = pytest.mark.parametrize("name", ["maxsep", "householder"])


def problem(name, num_classes, batch=6, width=5, bias=True, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    head = HEADS[name](width, num_classes, bias).to(dtype)
    x = torch.randn(batch, width, dtype=dtype, requires_grad=True)
    return head, x, torch.randint(num_classes, (batch,))


def unfused(head, x, target, adjustment=None, **options):
    logits = head(x)
    return F.cross_entropy(logits if adjustment is None else logits + adjustment, target, **options)


def derivatives(loss, leaves, upstream=None):
    return torch.autograd.grad(loss, leaves, upstream, allow_unused=True)


def assert_same(head, x, target, chunk_size=None, **options):
    leaves = [leaf for leaf in (x, *head.parameters(), options.get("adjustment")) if leaf is not None]
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    fused = fused_cross_entropy(head, x, target, chunk_size=chunk_size, **options)
    exact = unfused(head, x, target, **options)
    torch.testing.assert_close(fused, exact)
    upstream = torch.randn_like(exact)
    for ours, theirs in zip(derivatives(fused, leaves, upstream), derivatives(exact, leaves, upstream), strict=True):
        torch.testing.assert_close(ours, theirs)


@given(
    name=st.sampled_from(sorted(HEADS)),
    num_classes=st.integers(2, 70),
    batch=st.integers(1, 12),
    width=st.integers(1, 9),
    bias=st.booleans(),
    chunk_size=st.none() | st.integers(1, 80),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    label_smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    weighted=st.booleans(),
    adjusted=st.booleans(),
    ignored=st.none() | st.integers(0, 5),
    seed=st.integers(0, 99),
)
@settings(max_examples=150)
def test_value_and_gradients_for_every_option(
    name, num_classes, batch, width, bias, chunk_size, reduction, label_smoothing, weighted, adjusted, ignored, seed
):
    head, x, target = problem(name, num_classes, batch, width, bias, seed=seed)
    options = {"reduction": reduction, "label_smoothing": label_smoothing}
    if weighted:
        options["weight"] = torch.rand(num_classes, dtype=torch.float64) + 0.1
    if adjusted:
        options["adjustment"] = torch.randn(num_classes, dtype=torch.float64, requires_grad=True)
    if ignored is not None:
        options["ignore_index"] = ignored  # an index of a class may be ignored too
        target[0] = ignored if ignored < num_classes else 0
        if reduction == "mean" and (target == ignored).all():
            return  # has a test of its own
    assert_same(head, x, target, chunk_size, **options)


@pytest.mark.parametrize("name", HEADS)
def test_more_classes_than_a_chunk_chosen_from_memory(name):
    assert_same(*problem(name, 1_030, batch=40, width=3), label_smoothing=0.1)
    assert_same(*problem(name, 1_030, batch=3, width=40))


@both_bases
def test_ignored_rows_do_not_count(name):
    head, x, target = problem(name, 9)
    target[::2] = -100
    assert_same(head, x, target)
    assert_same(head, x, target, label_smoothing=0.2, weight=torch.rand(9, dtype=torch.float64))
    gradient = torch.autograd.grad(fused_cross_entropy(head, x, target), x)[0]
    assert (gradient[::2] == 0).all()


@both_bases
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_batch_of_ignored_samples(label_smoothing, name):
    head, x, target = problem(name, 9)
    target[:] = -100
    for reduction in ("sum", "none"):
        assert_same(head, x, target, reduction=reduction, label_smoothing=label_smoothing)
    mean = fused_cross_entropy(head, x, target, label_smoothing=label_smoothing)
    assert mean.isnan()
    assert unfused(head, x, target, label_smoothing=label_smoothing).isnan()
    for gradient in derivatives(mean, [x, *head.parameters()]):
        assert (gradient == 0).all()


@pytest.mark.parametrize("name", ["plain", "maxsep", "householder"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_label_that_is_no_class_makes_the_loss_nan_and_pulls_nothing(name, reduction, monkeypatch):
    """On a GPU labels are not looked at, which is pretended here: nobody shall learn from such a sample."""
    monkeypatch.setattr(sys.modules["maxsep.losses.fused_cross_entropy"], "check_labels", lambda *given: None)
    head, x, target = problem(name, 10)
    target[2], target[4], target[5] = 10, -1, -100
    loss = fused_cross_entropy(head, x, target, reduction=reduction)
    assert loss.isnan()
    gradient, *_ = derivatives(loss, [x])
    assert gradient.isfinite().all()
    assert (gradient[[2, 4, 5]] == 0).all()
    assert (gradient[[0, 1, 3]] != 0).all()


def test_nothing_but_ignored_samples_passes_anomaly_mode():
    head, x, _ = problem("plain", 10)
    with torch.autograd.set_detect_anomaly(True):
        loss = fused_cross_entropy(head, x, torch.full((len(x),), -100))
        torch.where(loss.isnan(), 0.0, loss).backward()
    assert x.grad.abs().sum() == 0


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_a_layer_without_classes_has_no_gradient():
    x = torch.randn(3, 4, requires_grad=True)
    torch.use_deterministic_algorithms(True)  # new memory holds NaN
    try:
        fused_cross_entropy(torch.nn.Linear(4, 0, bias=False), x, torch.full((3,), -100), reduction="sum").backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert x.grad.abs().sum() == 0


@both_bases
@pytest.mark.parametrize("last", [1, 0])
def test_class_weights_of_zero(name, last):
    head, x, target = problem(name, 9)
    weight = torch.tensor([0.0, 1, 0, 2, 0, 1, 3, 0, last], dtype=torch.float64)
    target[:3] = torch.tensor([0, 1, 8])
    for label_smoothing in (0.0, 0.3):
        assert_same(head, x, target, weight=weight, label_smoothing=label_smoothing)


@pytest.mark.parametrize("size", [1e-8, 1e3, 1e6])
@pytest.mark.parametrize("name", ["maxsep", "householder", "linear"])
def test_extreme_logits(size, name):
    head, x, target = problem(name, 50)
    assert_same(head, (x.detach() * size).requires_grad_(), target, chunk_size=7)


@both_bases
def test_extreme_logits_in_float32_stay_finite(name):
    head, x, target = problem(name, 50, dtype=torch.float32)
    loss = fused_cross_entropy(head, x * 1e6, target, chunk_size=7)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in derivatives(loss, [x, *head.parameters()]))


@both_bases
@pytest.mark.parametrize("last", [0.0, -torch.inf])
def test_classes_that_an_adjustment_rules_out(name, last):
    head, x, target = problem(name, 9)
    adjustment = torch.zeros(9, dtype=torch.float64)
    adjustment[:4] = -torch.inf
    adjustment[8] = last
    for chunk_size in (None, 2, 3):  # the first chunk has nothing but -inf
        assert_same(head, x, target.clamp(4, 7), chunk_size, adjustment=adjustment)
    assert fused_cross_entropy(head, x, torch.zeros_like(target), adjustment=adjustment).isposinf()


def test_an_adjustment_of_log_priors_is_logit_adjustment():
    counts = torch.tensor([50.0, 30, 20, 5])
    head, x, target = problem("maxsep", 4)
    adjustment = 1.5 * (counts / counts.sum()).double().log()
    expected = LogitAdjustedLoss(counts, tau=1.5)(head(x), target)
    torch.testing.assert_close(fused_cross_entropy(head, x, target, adjustment=adjustment), expected)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@both_bases
def test_an_empty_batch(reduction, name):
    head, x, target = problem(name, 9, batch=0)
    adjustment = torch.zeros(9, dtype=x.dtype, requires_grad=True)
    fused = fused_cross_entropy(head, x, target, reduction=reduction, adjustment=adjustment)
    exact = unfused(head, x, target, reduction=reduction)
    torch.testing.assert_close(fused, exact, equal_nan=True)
    for gradient in derivatives(fused, [x, *head.parameters(), adjustment], torch.ones_like(fused)):
        assert (gradient == 0).all()  # and none is missing, which DDP would wait for


@both_bases
def test_samples_in_any_shape(name):
    head, x, _ = problem(name, 9)
    x = x.detach().view(2, 3, 5).transpose(0, 1)
    target = torch.randint(9, (3, 2))
    rows = fused_cross_entropy(head, x, target, reduction="none")
    expected = F.cross_entropy(head(x).flatten(0, 1), target.flatten(), reduction="none").view(3, 2)
    torch.testing.assert_close(rows, expected)
    single = fused_cross_entropy(head, x[0, 0], target[0, 0])
    torch.testing.assert_close(single, expected[0, 0])


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True), (True, False, True)]
)
@pytest.mark.parametrize("shape", [(6, 5), (3, 8)])
@both_bases
def test_gradients_only_where_they_are_wanted(wanted, shape, name):
    head, x, target = problem(name, 30, *shape)
    for leaf, wants in zip((x, head.weight, head.bias), wanted, strict=True):
        leaf.requires_grad_(wants)
    assert_same(head, x, target, chunk_size=8, label_smoothing=0.1)


@both_bases
def test_without_gradients(name):
    head, x, target = problem(name, 30)
    with torch.no_grad():
        loss = fused_cross_entropy(head, x, target)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, unfused(head, x, target).detach())


@both_bases
def test_backward_twice_through_a_retained_graph(name):
    head, x, target = problem(name, 300, batch=20)
    loss = fused_cross_entropy(head, x, target)
    first = torch.autograd.grad(loss, head.weight, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(loss, head.weight)[0], first, atol=0, rtol=0)


@both_bases
def test_no_second_derivatives(name):
    head, x, target = problem(name, 9)
    (gradient,) = torch.autograd.grad(fused_cross_entropy(head, x, target), x, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        gradient.sum().backward()


@pytest.mark.parametrize("batch", [4, 40])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@both_bases
def test_half_precision_sums_in_float32(dtype, batch, name):
    head, x, target = problem(name, 200, batch=batch, width=16, dtype=torch.float32)
    head, rounded = head.to(dtype), x.detach().to(dtype).requires_grad_()
    loss = fused_cross_entropy(head, rounded, target)
    gradients = derivatives(loss, [rounded, *head.parameters()])
    assert loss.dtype == torch.float32
    assert all(gradient.dtype == dtype for gradient in gradients)
    head = head.double()
    exact = unfused(head, wide := rounded.detach().double().requires_grad_(), target)
    torch.testing.assert_close(loss.double(), exact, rtol=2e-3, atol=0)
    for ours, theirs in zip(gradients, derivatives(exact, [wide, *head.parameters()]), strict=True):
        assert (ours.double() - theirs).norm() < 0.02 * theirs.norm()


@both_bases
def test_autocast(name):
    head, x, target = problem(name, 200, batch=40, width=16, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = fused_cross_entropy(head, x, target)
    exact = unfused(head, x, target)
    assert fused.dtype == torch.float32
    torch.testing.assert_close(fused, exact, rtol=5e-3, atol=5e-3)
    leaves = [x, *head.parameters()]
    for ours, theirs in zip(derivatives(fused, leaves), derivatives(exact, leaves), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@both_bases
def test_compiled_without_graph_breaks(name):
    head, x, target = problem(name, 30, dtype=torch.float32)

    def step(x):
        return fused_cross_entropy(head, x.tanh(), target, label_smoothing=0.1, chunk_size=8)

    fused = torch.compile(step, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(fused, step(x))
    leaves = [x, *head.parameters()]
    for ours, theirs in zip(derivatives(fused, leaves), derivatives(step(x), leaves), strict=True):
        torch.testing.assert_close(ours, theirs)


TRANSFORMS = {
    "grad": lambda f, x, target: torch.func.grad(f)(x, target),
    "vmap": lambda f, x, target: torch.func.vmap(f)(x[:, None], target[:, None]),
    "grad of each": lambda f, x, target: torch.func.vmap(torch.func.grad(f))(x[:, None], target[:, None]),
    "jvp": lambda f, x, target: torch.func.jvp(lambda x: f(x, target), (x,), (x,))[1],
    "hessian": lambda f, x, target: torch.func.hessian(f)(x, target),
}


@pytest.mark.parametrize("way", ["chunks", "held"])
@pytest.mark.parametrize(
    ("name", "compiled"), [*((name, False) for name in HEADS), ("maxsep", True), ("householder", True)]
)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(request, transform, name, compiled, way):
    torch.compiler.reset()
    if way == "held":
        request.getfixturevalue("held")
    head, x, target = problem(name, 9, dtype=torch.float32)
    options = {"adjustment": torch.linspace(0, 1, 9), "weight": torch.linspace(1, 2, 9)}

    def apply(loss, x, target):
        return TRANSFORMS[transform](lambda x, target: loss(head, x, target, **options), x, target)

    call = torch.compile(apply, backend="aot_eager") if compiled else apply
    ours, theirs = call(fused_cross_entropy, x.detach(), target), apply(unfused, x.detach(), target)
    torch.testing.assert_close(ours, theirs)


@pytest.fixture
def held(monkeypatch):
    """Let a CPU take the way of a GPU for small outputs, in Triton's interpreter, and no other way."""
    pytest.importorskip("triton", reason="no Triton for this platform")
    if torch.cuda.is_available():
        pytest.skip("tests/cuda runs the kernel compiled, not interpreted")
    module = sys.modules["maxsep.losses.fused_cross_entropy"]
    monkeypatch.setattr(module.triton_scan, "takes", lambda x: x.dtype != torch.float64)
    monkeypatch.setattr(module, "row_losses", lambda *_, **__: pytest.fail("went through chunks"))
    return module


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "none", "ignore_index": 3, "adjustment": True},
        {"reduction": "sum", "label_smoothing": 0.1, "weight": True},
        {"label_smoothing": 0.2, "weight": True, "adjustment": True},
    ],
)
def test_small_outputs_on_a_gpu_are_held(held, bias, options):
    head, x, _ = problem("maxsep", 30, bias=bias, dtype=torch.float32)
    x, target = x.detach().view(2, 3, 5).requires_grad_(), torch.tensor([[0, 29, 3], [3, 4, 12]])
    options = {name: torch.rand(30) if value is True else value for name, value in options.items()}
    loss = fused_cross_entropy(head, x, target, **options)
    upstream = torch.randn_like(loss)
    gradients = derivatives(loss, [x, *head.parameters()], upstream)
    wide, wide_x = copy.deepcopy(head).double(), x.detach().double().requires_grad_()
    flat = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    exact = unfused(wide, wide_x.reshape(6, 5), target.flatten(), **flat).view(loss.shape)
    torch.testing.assert_close(loss, exact.float())
    for ours, theirs in zip(
        gradients, derivatives(exact, [wide_x, *wide.parameters()], upstream.double()), strict=True
    ):
        torch.testing.assert_close(ours, theirs.float())


def test_small_outputs_are_held_under_autocast(held):
    head, x, target = problem("maxsep", 30, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = fused_cross_entropy(head, x, target)
    torch.testing.assert_close(loss, unfused(head, x, target), rtol=1e-2, atol=1e-2)
    assert all(gradient.dtype == torch.float32 for gradient in derivatives(loss, [x, *head.parameters()]))


@pytest.mark.parametrize("compiled", [False, True])
def test_held_outputs_are_padded_for_tensor_cores(held, monkeypatch, compiled):
    torch.compiler.reset()
    monkeypatch.setattr("maxsep.ops.padding.takes", lambda x: True)
    monkeypatch.setattr("maxsep.ops.padding._allows_tf32", lambda: True)
    made, seen = padding._padded_like, []
    monkeypatch.setattr(padding, "_padded_like", lambda *given: seen.append(len(given[0])) or made(*given))
    head, x, target = problem("maxsep", 30, dtype=torch.float32)
    step = torch.compile(fused_cross_entropy, fullgraph=True, backend="aot_eager") if compiled else fused_cross_entropy
    loss, expected = step(head, x, target), unfused(head, x, target)
    assert seen == [29]
    torch.testing.assert_close(loss, expected)
    leaves = [x, *head.parameters()]
    for ours, theirs in zip(derivatives(loss, leaves), derivatives(expected, leaves), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("maxsep", {"chunk_size": 300}),
        ("maxsep", {"adjustment": torch.zeros(30, requires_grad=True)}),
        ("linear", {}),
        ("householder", {}),
        ("maxsep", {}),
    ],
)
def test_what_is_not_held_goes_through_chunks(held, monkeypatch, name, more):
    head, x, target = problem(name, 30, dtype=torch.float32)
    if not more and name == "maxsep":
        monkeypatch.setattr(held, "HELD_BYTES", 6 * 29 * 4 - 1)  # a byte less than its outputs take
    with pytest.raises(pytest.fail.Exception, match="went through chunks"):
        fused_cross_entropy(head, x, target, **more)


def test_training_by_it_lowers_the_loss():
    torch.manual_seed(0)
    head = MaxSeparationHead(8, 300, radius=0.5)
    x, target = torch.randn(64, 8), torch.arange(64) * 4
    optimiser = torch.optim.SGD(head.parameters(), lr=20.0)
    values = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = fused_cross_entropy(head, x, target)
        loss.backward()
        optimiser.step()
        values.append(loss.item())
    assert values[-1] < values[0] / 2


class Odd(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"head": nn.Identity()}, TypeError, "head must be a MaxSeparationHead.*got Identity.*maxsep.fold"),
        ({"head": Odd(5, 9)}, TypeError, "got Odd"),
        ({"head": heads.ETFHead(5, 6)}, TypeError, "got ETFHead"),
        ({"x": [1.0]}, TypeError, "x must be a tensor"),
        ({"x": torch.zeros(6, 4)}, ValueError, r"x must be \(\.\.\., 5\).*got shape \(6, 4\)"),
        ({"x": torch.zeros(())}, ValueError, r"x must be \(\.\.\., 5\)"),
        ({"x": torch.zeros(6, 5, dtype=torch.float16)}, TypeError, "one dtype, got torch.float16 and torch.float64"),
        ({"target": torch.zeros(5, dtype=torch.int64)}, ValueError, r"target must be \(6,\).*got shape \(5,\)"),
        ({"target": torch.zeros(6)}, TypeError, "class indices of dtype torch.int64"),
        ({"target": torch.full((6,), 9)}, ValueError, "from 0 to 8, or -100.*got 9 at position 0"),
        ({"target": torch.full((6,), -1)}, ValueError, "got -1 at position 0"),
        ({"target": torch.full((6,), -100), "ignore_index": 7}, ValueError, "or 7 for a sample to ignore, got -100"),
        ({"target": torch.zeros(6, dtype=torch.int64, device="meta")}, ValueError, "on one device.*meta"),
        ({"ignore_index": None}, TypeError, "ignore_index must be an int"),
        ({"reduction": "max"}, ValueError, "one of mean, sum, none, got 'max'"),
        ({"label_smoothing": 1.1}, ValueError, "label_smoothing must be a number from 0 to 1, got 1.1"),
        ({"weight": torch.ones(8)}, ValueError, r"weight must be \(9,\).*got shape \(8,\)"),
        ({"weight": torch.ones(9, dtype=torch.int64)}, TypeError, "weight must be a real floating-point tensor"),
        ({"weight": torch.ones(9, device="meta")}, ValueError, "weight must be on the device of x"),
        ({"weight": torch.ones(9, requires_grad=True)}, ValueError, "class weights have none here"),
        ({"adjustment": torch.ones(3)}, ValueError, r"adjustment must be \(9,\)"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be at least 1, got 0"),
        ({"chunk_size": 1.5}, TypeError, "chunk_size must be an int"),
    ],
)
def test_wrong_input_is_named(change, error, message):
    head, x, target = problem("maxsep", 9)
    arguments = {"head": head, "x": x, "target": target} | change
    with pytest.raises(error, match=message):
        fused_cross_entropy(**arguments)
