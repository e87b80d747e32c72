"""The fused loss is F.cross_entropy of the head's logits, in value and every gradient, for every option."""

import itertools
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from maxsep import MaxSeparationHead, attach, heads
from maxsep.losses import fused_cross_entropy, linear_logsumexp
from maxsep.ops.linear_cross_entropy import over_classes, over_samples

HEADS = {
    "maxsep": lambda d, c, bias: MaxSeparationHead(d, c, 0.7, bias),
    "ordered": lambda d, c, bias: MaxSeparationHead(d, c, 0.7, bias, class_order=torch.randperm(c)),
    "plain": lambda d, c, bias: heads.PlainHead(d, c, bias=bias),
    "scaled": lambda d, c, bias: heads.ScaledHead(d, c, 0.3, bias),
    "control": lambda d, c, bias: heads.ControlHead(d, c, 0.3, bias),
    "linear": lambda d, c, bias: nn.Linear(d, c, bias),
}
IMPLS = ["auto", "classes", "samples", "logits"]
streamed = pytest.mark.parametrize("impl", ["classes", "samples"])
every_impl = pytest.mark.parametrize("impl", IMPLS)


def problem(name, num_classes, batch=6, width=5, bias=True, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    head = HEADS[name](width, num_classes, bias).to(dtype)
    x = torch.randn(batch, width, dtype=dtype, requires_grad=True)
    return head, x, torch.randint(num_classes, (batch,))


def unfused(
    head, x, target, *, adjustment=None, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0,
    sample_weight=None, z_loss=0.0,
):  # fmt: skip
    """The definition of the loss by its logits."""
    logits = head(x) if adjustment is None else head(x) + adjustment
    counts = target != ignore_index
    losses = F.cross_entropy(
        logits, target, weight, None, ignore_index, label_smoothing=label_smoothing, reduction="none"
    )
    losses = losses + torch.where(counts, z_loss * logits.logsumexp(-1) ** 2, 0)
    share = counts.to(x.dtype) if weight is None else counts * weight[torch.where(counts, target, 0)]
    if sample_weight is not None:
        losses, share = losses * sample_weight, share * sample_weight
    return losses if reduction == "none" else losses.sum() / (share.sum() if reduction == "mean" else 1)


def gradients(loss, inputs, upstream=None):
    return torch.autograd.grad(loss, inputs, upstream, allow_unused=True)


def leaves_of(head, x, *more):
    return [leaf for leaf in (x, *head.parameters(), *more) if leaf is not None and leaf.requires_grad]


def assert_same(head, x, target, impl="auto", **options):
    leaves = leaves_of(head, x, options.get("adjustment"), options.get("sample_weight"))
    fused, exact = fused_cross_entropy(head, x, target, impl=impl, **options), unfused(head, x, target, **options)
    torch.testing.assert_close(fused, exact)
    upstream = torch.randn_like(exact)
    for ours, theirs in zip(gradients(fused, leaves, upstream), gradients(exact, leaves, upstream), strict=True):
        torch.testing.assert_close(ours, theirs)


@st.composite
def options(draw, num_classes, batch):
    """Every option of the loss, in any combination."""
    chosen = {
        "reduction": draw(st.sampled_from(["mean", "sum", "none"])),
        "label_smoothing": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "z_loss": draw(st.sampled_from([0.0, 0.01])),
        "ignore_index": draw(st.sampled_from([-100, 0, num_classes])),  # a class may be ignored too
    }
    if draw(st.booleans()):
        chosen["weight"] = torch.rand(num_classes, dtype=torch.float64) + 0.1
    for name, size in (("adjustment", num_classes), ("sample_weight", batch)):
        if (trained := draw(st.none() | st.booleans())) is not None:
            chosen[name] = (torch.rand(size, dtype=torch.float64) + 0.1).requires_grad_(trained)
    return chosen


@given(
    data=st.data(),
    name=st.sampled_from(sorted(HEADS)),
    impl=st.sampled_from(IMPLS),
    num_classes=st.integers(2, 40),
    batch=st.integers(2, 9),
    width=st.integers(1, 9),
    bias=st.booleans(),
    is_chunked=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=200)
def test_value_and_gradients_for_every_option(data, name, impl, num_classes, batch, width, bias, is_chunked, seed):
    head, x, target = problem(name, num_classes, batch, width, bias, seed=seed)
    chosen = data.draw(options(num_classes, batch))
    target[0], target[1] = num_classes - 1, chosen["ignore_index"]
    with pytest.MonkeyPatch.context() as patch:
        if is_chunked:
            patch.setitem(over_samples.FEW_BYTES, "cpu", 2 * num_classes * 8)
            patch.setitem(over_classes.CHUNK_BYTES, "cpu", 1)
            patch.setattr(over_classes, "MULTIPLE", 8)
        assert_same(head, x, target, impl, **chosen)


@every_impl
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_of_ignored_samples(impl, label_smoothing, weighted):
    head, x, target = problem("maxsep", 9)
    target[:] = -100
    more = {"label_smoothing": label_smoothing, "weight": torch.rand(9, dtype=torch.float64) if weighted else None}
    assert_same(head, x, target, impl, reduction="sum", **more)
    mean = fused_cross_entropy(head, x, target, impl=impl, **more)
    assert mean.isnan()
    assert F.cross_entropy(head(x), target, **more).isnan()
    assert all((gradient == 0).all() for gradient in gradients(mean, leaves_of(head, x)))


@every_impl
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"label_smoothing": 0.1}, {"ignore_index": 0, "weight": torch.tensor([torch.inf, 1, 2, 3, 4]).double()}],
)
def test_an_ignored_sample_may_hold_anything(impl, reduction, trained, options):
    head, x, target = problem("linear", 5, batch=4)
    sample_weight = torch.tensor([1, 2, torch.nan, 3], dtype=x.dtype, requires_grad=trained)
    target.copy_(torch.tensor([1, 2, options.get("ignore_index", -100), 3]))
    x.data[2], kept = torch.inf, torch.tensor([0, 1, 3])
    options = options | {"reduction": reduction}
    loss = fused_cross_entropy(head, x, target, sample_weight=sample_weight, impl=impl, **options)
    rest = unfused(head, x[kept], target[kept], sample_weight=sample_weight[kept], **options)
    torch.testing.assert_close(loss.sum(), rest.sum())
    if trained:
        assert gradients(loss.sum(), [sample_weight])[0][2] == 0


@every_impl
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_features(impl):
    assert_same(*problem("linear", 9, width=0), impl, label_smoothing=0.1)


@every_impl
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_empty_batch(impl, reduction):
    head, x, target = problem("maxsep", 9, batch=0)
    adjustment = torch.zeros(9, dtype=x.dtype, requires_grad=True)
    loss = fused_cross_entropy(head, x, target, reduction=reduction, adjustment=adjustment, impl=impl)
    torch.testing.assert_close(loss, unfused(head, x, target, reduction=reduction), equal_nan=True)
    for gradient in gradients(loss, leaves_of(head, x, adjustment), torch.ones_like(loss)):
        assert (gradient == 0).all()  # and none is missing, which DDP would wait for


@every_impl
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["maxsep", "linear", "ordered"])
def test_a_label_that_is_no_class_makes_the_loss_nan(impl, reduction, name, monkeypatch):
    """On a GPU labels are not looked at, which is pretended here."""
    monkeypatch.setattr(sys.modules["maxsep.losses.fused"], "check_target", lambda *_: None)
    head, x, target = problem(name, 10)
    target[2], target[4], target[5] = 10, -1, -100
    loss = fused_cross_entropy(head, x, target, reduction=reduction, impl=impl)
    assert loss.isnan()
    assert (gradients(loss, [x])[0][5] == 0).all()


@streamed
@pytest.mark.parametrize("name", ["maxsep", "linear"])
def test_extreme_logits_and_excluded_classes(impl, name):
    head, x, target = problem(name, 50)
    for size in (1e-8, 1e6):
        assert_same(head, (x.detach() * size).requires_grad_(), target, impl)
    adjustment = torch.zeros(50, dtype=x.dtype)
    adjustment[:20] = -torch.inf
    assert_same(head, x, target.clamp(min=20), impl, adjustment=adjustment)
    assert fused_cross_entropy(head, x, target * 0, adjustment=adjustment, impl=impl).isposinf()


@every_impl
@pytest.mark.parametrize("name", ["ordered", "linear"])
def test_samples_of_any_leading_shape(impl, name):
    head, x, _ = problem(name, 9)
    x, target = x.detach().view(2, 3, 5).transpose(0, 1), torch.randint(9, (3, 2))
    sample_weight = torch.rand(3, 2, dtype=torch.float64)
    rows = fused_cross_entropy(head, x, target, reduction="none", sample_weight=sample_weight, impl=impl)
    expected = F.cross_entropy(head(x).movedim(-1, 1), target, reduction="none")
    torch.testing.assert_close(rows, expected * sample_weight)
    torch.testing.assert_close(fused_cross_entropy(head, x[0, 0], target[0, 0], impl=impl), expected[0, 0])
    assert linear_logsumexp(head, x, target)[0].shape == (3, 2)


@streamed
@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradients_only_where_they_are_wanted(impl, wanted):
    head, x, target = problem("maxsep", 30)
    for leaf, wants in zip((x, head.weight, head.bias), wanted, strict=True):
        leaf.requires_grad_(wants)
    assert_same(head, x, target, impl, label_smoothing=0.1)
    with torch.no_grad():
        assert not fused_cross_entropy(head, x, target, impl=impl).requires_grad


@every_impl
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives(impl, reduction):
    head, x, target = problem("maxsep", 9)
    loss = fused_cross_entropy(head, x, target, impl=impl, reduction=reduction).sum()
    if impl in ("classes", "samples"):  # auto holds so few logits
        with pytest.raises(RuntimeError, match="impl='logits'"):
            torch.autograd.grad(loss, x, create_graph=True)
        return
    found = []
    for value in (loss, F.cross_entropy(head(x), target, reduction=reduction).sum()):
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), head.weight)[0])
    torch.testing.assert_close(*found)


@every_impl
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "autocast"])
@pytest.mark.parametrize("name", ["maxsep", "linear"])
def test_half_precision(impl, dtype, name):
    head, x, target = problem(name, 200, batch=40, width=16, dtype=torch.float32)
    is_autocast = dtype == "autocast"
    if not is_autocast:
        head, x = head.to(dtype), x.detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        loss = fused_cross_entropy(head, x, target, impl=impl, label_smoothing=0.1)
    ours = gradients(loss, leaves_of(head, x))
    assert loss.dtype == torch.float32
    assert {gradient.dtype for gradient in ours} == {torch.float32 if is_autocast else dtype}
    head, wide = head.double(), x.detach().double().requires_grad_()
    exact = unfused(head, wide, target, label_smoothing=0.1)
    torch.testing.assert_close(loss.double(), exact, rtol=5e-3, atol=0)
    for a, b in zip(ours, gradients(exact, leaves_of(head, wide)), strict=True):
        assert (a.double() - b).norm() < 0.02 * b.norm()


@pytest.mark.usefixtures("fresh")
@streamed
@pytest.mark.parametrize(
    ("name", "reduction", "backend"),
    [("ordered", "mean", "inductor"), ("ordered", "none", "aot_eager"), ("linear", "sum", "aot_eager")],
)
def test_compiled_without_graph_breaks(impl, name, reduction, backend):
    head, x, target = problem(name, 30, batch=16, dtype=torch.float32)
    target[1] = -100
    more = {"label_smoothing": 0.1, "z_loss": 0.1, "weight": torch.linspace(1, 2, 30), "reduction": reduction}

    def step(x, target):
        return fused_cross_entropy(head, x.tanh(), target, impl=impl, **more)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for batch in (16, 5) if backend == "aot_eager" else (16,):
        rows = x[:batch].detach().requires_grad_()
        ours, theirs = (f(rows, target[:batch]) for f in (compiled, step))
        torch.testing.assert_close(ours, theirs)
        upstream, leaves = torch.ones_like(theirs), leaves_of(head, rows)
        for a, b in zip(gradients(ours, leaves, upstream), gradients(theirs, leaves, upstream), strict=True):
            torch.testing.assert_close(a, b)


def test_exported():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = MaxSeparationHead(5, 30)

        def forward(self, x, target):
            return fused_cross_entropy(self.head, x, target)

    _, x, target = problem("maxsep", 30, dtype=torch.float32)
    model, shapes = Model(), ({0: torch.export.Dim("batch")}, {0: torch.export.Dim("batch")})
    program = torch.export.export(model, (x.detach(), target), dynamic_shapes=shapes)
    torch.testing.assert_close(program.module()(x[:4].detach(), target[:4]), model(x[:4], target[:4]))


TRANSFORMS = {
    "grad": lambda f, x, target: torch.func.grad(f)(x, target),
    "grad of each": lambda f, x, target: torch.func.vmap(torch.func.grad(f))(x[:, None], target[:, None]),
    "jvp": lambda f, x, target: torch.func.jvp(lambda x: f(x, target), (x,), (x,))[1],
    "hessian": lambda f, x, target: torch.func.hessian(f)(x, target),
}


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(("name", "compiled"), [("ordered", False), ("linear", False), ("maxsep", True)])
def test_transforms(transform, name, compiled):
    head, x, target = problem(name, 9, dtype=torch.float32)
    more = {"adjustment": torch.linspace(0, 1, 9), "weight": torch.linspace(1, 2, 9)}

    def apply(loss, x, target):
        return TRANSFORMS[transform](lambda x, target: loss(head, x, target, **more), x, target)

    call = torch.compile(apply, backend="aot_eager") if compiled else apply
    torch.testing.assert_close(call(fused_cross_entropy, x.detach(), target), apply(unfused, x.detach(), target))


def test_other_losses_from_the_log_sum_exp():
    head, x, target = problem("ordered", 30)
    target[0] = -100
    adjustment = torch.randn(30, dtype=x.dtype, requires_grad=True)
    lse, logit = linear_logsumexp(head, x, target, adjustment=adjustment)
    assert logit.isnan().tolist() == [True] + [False] * 5
    counts = target >= 0
    losses = torch.where(counts, lse - logit, 0)
    scaled = (losses * torch.exp(-losses.detach())).sum()  # token scaling
    exact = F.cross_entropy(head(x) + adjustment, target, reduction="none")
    torch.testing.assert_close(losses, exact)
    leaves, exact = leaves_of(head, x, adjustment), (exact * torch.exp(-exact.detach())).sum()
    for ours, theirs in zip(gradients(scaled, leaves), gradients(exact, leaves), strict=True):
        torch.testing.assert_close(ours, theirs)


class Odd(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()


class OddLayer(heads.PlainHead):
    def layer(self, x):
        return super().layer(F.normalize(x, dim=-1))


WRONG = [
    ({"head": Odd(5, 9)}, TypeError, "head must.*Odd"),
    ({"head": OddLayer(5, 9)}, TypeError, "head must.*OddLayer"),
    ({"head": heads.ETFHead(5, 6)}, TypeError, "head must.*ETFHead"),
    ({"head": attach(nn.Conv2d(5, 9, 1), classifier="")}, TypeError, r"head must.*\.layer"),
    ({"x": [1.0]}, TypeError, "x must"),
    ({"x": torch.zeros(6, 4)}, ValueError, "x must"),
    ({"x": torch.zeros(6, 5, dtype=torch.float16)}, TypeError, "one dtype"),
    ({"target": torch.zeros(5, dtype=torch.int64)}, ValueError, "target must"),
    ({"target": torch.full((6,), -1)}, ValueError, "got -1 at position 0"),
    ({"target": torch.zeros(6, dtype=torch.int64, device="meta")}, ValueError, "one device"),
    ({"ignore_index": None}, TypeError, "ignore_index must"),
    ({"label_smoothing": 1.1}, ValueError, "label_smoothing must"),
    ({"z_loss": -1.0}, ValueError, "z_loss must"),
    ({"weight": torch.ones(8)}, ValueError, "weight must"),
    ({"weight": torch.ones(9, requires_grad=True)}, ValueError, "weight must"),
    ({"adjustment": torch.ones(3)}, ValueError, "adjustment must"),
    ({"sample_weight": torch.ones(5)}, ValueError, "sample_weight must"),
    ({"impl": "triton"}, ValueError, "impl must"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_wrong_input_is_named(change, error, message):
    head, x, target = problem("maxsep", 9)
    with pytest.raises(error, match=message):
        fused_cross_entropy(**{"head": head, "x": x, "target": target} | change)


def test_the_squared_log_sum_exp_alone_in_float16():
    """Class weights of zero leave z_loss, whose gradient must not overflow before it is scaled."""
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 16).half(), torch.randn(5, 8).half().requires_grad_()
    target, weight = torch.tensor([0, 1, 0, 1, 0]), torch.ones(16)
    weight[:2] = 0
    options = {"weight": weight, "reduction": "sum", "z_loss": 1e-4}
    ours, theirs = (
        torch.autograd.grad(fused_cross_entropy(layer, x, target, impl=impl, **options), x)[0]
        for impl in ("samples", "logits")
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=2e-2)


@every_impl
def test_float64_stays_under_autocast(impl):
    head, x, target = problem("maxsep", 20)
    with torch.autocast("cpu", torch.bfloat16):
        loss = fused_cross_entropy(head, x, target, impl=impl)
        with pytest.raises(TypeError, match="float32"):  # as head(x)
            fused_cross_entropy(head, x.float(), target, impl=impl)
    torch.testing.assert_close(loss, unfused(head, x, target), rtol=1e-12, atol=0)


def test_smoothing_sums_in_float32_under_autocast():
    torch.manual_seed(0)
    layer, x, target = nn.Linear(16, 1_000), torch.randn(32, 16), torch.randint(1_000, (32,))
    adjustment = -torch.arange(1.0, 1_001).log()
    expected = F.cross_entropy(layer(x) + adjustment, target, label_smoothing=0.2)
    with torch.autocast("cpu", torch.bfloat16):
        loss = fused_cross_entropy(layer, x, target, label_smoothing=0.2, adjustment=adjustment, impl="samples")
    assert abs(loss - expected) < 1e-3


def peak(step):
    """Return the bytes that a step held at most beyond those it started with, as torch's allocator counts."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda event: event.start_ns())))


@pytest.mark.parametrize(("dtype", "weights", "mib"), [(torch.float32, 1, 50), (torch.bfloat16, 4, 80)])
@pytest.mark.parametrize("name", ["maxsep", "linear"])
def test_memory(name, dtype, weights, mib):
    """As docs/guide/many_classes.md says; an nn.Linear takes one weight less."""
    head, x, target = problem(name, 50_000, 1_024, 128, dtype=dtype)
    held = peak(lambda: fused_cross_entropy(head, x, target).backward()) - sum(t.nbytes for t in leaves_of(head, x))
    assert held <= (weights - (name == "linear")) * head.weight.nbytes + (mib << 20)
