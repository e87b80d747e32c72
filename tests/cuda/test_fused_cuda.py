"""The fused loss where its kernels compile: run these on a GPU (`pytest tests/cuda`)."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy, linear_logsumexp

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
both = pytest.mark.parametrize("impl", ["classes", "samples"])
SLACK = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def build(kind, width, num_classes, dtype=torch.float32, bias=True):
    if kind == "linear":
        return nn.Linear(width, num_classes, bias, device="cuda", dtype=dtype)
    order = torch.randperm(num_classes) if kind == "ordered" else None
    return MaxSeparationHead(width, num_classes, 0.5, bias, class_order=order, device="cuda", dtype=dtype)


def problem(kind, batch, width, num_classes, dtype=torch.float32):
    torch.manual_seed(0)
    x = torch.randn(batch, width, device="cuda").to(dtype).requires_grad_()
    target = torch.randint(num_classes, (batch,), device="cuda")
    target[0] = num_classes - 1
    return build(kind, width, num_classes, dtype), x, target


def every_option(num_classes, batch):
    return {
        "label_smoothing": 0.1,
        "z_loss": 1e-3,
        "weight": torch.rand(num_classes, device="cuda") + 0.1,
        "adjustment": torch.randn(num_classes, device="cuda", requires_grad=True),
        "sample_weight": torch.rand(batch, device="cuda"),
        "ignore_index": 1,
    }


def exact_gradients(head, x, target, weight=None, adjustment=None, sample_weight=None, z_loss=0.0, **options):
    """Value and gradients of the sum over samples in float64, by the logits."""
    head, x = copy.deepcopy(head).double(), x.detach().double().requires_grad_()
    logits = head(x)
    if adjustment is not None:
        adjustment = adjustment.detach().double().requires_grad_()
        logits = logits + adjustment
    weight = None if weight is None else weight.double()
    losses = F.cross_entropy(logits, target, weight, reduction="none", **options)
    counts = target != options.get("ignore_index", -100)
    losses = losses + torch.where(counts, z_loss * logits.logsumexp(-1) ** 2, 0)
    value = (losses if sample_weight is None else losses * sample_weight).sum()
    leaves = [x, *head.parameters()] + ([] if adjustment is None else [adjustment])
    return value, *torch.autograd.grad(value, leaves)


def off(ours, theirs):
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(ours, theirs, strict=True)]


def gradients(loss, head, x, *more):
    return loss, *torch.autograd.grad(loss, [x, *head.parameters(), *more])


@both
@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize(
    ("kind", "batch", "width", "num_classes"),
    [
        ("maxsep", 33, 24, 2),
        ("ordered", 256, 64, 5_000),
        ("linear", 130, 512, 20_001),
        ("maxsep", 8, 1_024, 70_001),
        ("linear", 7, 33, 100),
    ],
)
def test_values_and_gradients(impl, dtype, kind, batch, width, num_classes):
    head, x, target = problem(kind, batch, width, num_classes, dtype)
    for options in ({}, every_option(num_classes, batch)):
        loss = fused_cross_entropy(head, x, target, reduction="sum", impl=impl, **options)
        assert loss.dtype == torch.float32
        adjustment = [options["adjustment"]] if options else []
        errors = off(gradients(loss, head, x, *adjustment), exact_gradients(head, x, target, **options))
        assert max(errors) < SLACK[dtype], errors


@both
@pytest.mark.parametrize("kind", ["ordered", "linear"])
def test_many_chunks(impl, kind, monkeypatch):
    from maxsep.ops.linear_cross_entropy import over_classes, over_samples

    monkeypatch.setitem(over_classes.CHUNK_BYTES, "cuda", 1 << 20)
    monkeypatch.setattr(over_samples, "chunk_rows", lambda x, _: min(len(x), 128))
    head, x, target = problem(kind, 520, 128, 9_001, torch.bfloat16)
    loss = fused_cross_entropy(head, x, target, reduction="sum", impl=impl)
    assert max(off(gradients(loss, head, x), exact_gradients(head, x, target))) < 2e-2
    lse, logit = linear_logsumexp(head, x, target)
    assert max(off(gradients((lse - logit).sum(), head, x), exact_gradients(head, x, target))) < 2e-2


@both
@pytest.mark.parametrize("kind", ["maxsep", "linear"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_with_weights_in_float32(impl, kind, dtype):
    """With float16 a loss scale keeps the mean of many samples from underflowing."""
    head, x, target = problem(kind, 2_048, 64, 5_000)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16, enabled=dtype == torch.float16)
    with torch.autocast("cuda", dtype=dtype):
        loss = fused_cross_entropy(head, x, target, impl=impl)
    scaler.scale(loss).backward()
    optimiser = torch.optim.SGD([x, *head.parameters()], lr=0.1)
    scaler.unscale_(optimiser)
    ours = (loss, x.grad, *(p.grad for p in head.parameters()))
    assert {t.dtype for t in ours} == {torch.float32}
    exact = [t / 2_048 for t in exact_gradients(head, x, target)]
    assert max(off(ours, exact)) < SLACK[dtype]
    before = head.weight.detach().clone()
    scaler.step(optimiser)
    assert not torch.equal(before, head.weight)


@pytest.mark.parametrize(
    ("kind", "batch", "width", "num_classes", "limit"),
    [
        ("maxsep", 4_096, 512, 1_000_000, "share"),
        ("linear", 4_096, 512, 1_000_000, "share"),
        ("maxsep", 8_192, 512, 50_000, 3.5),
        ("maxsep", 2_048, 4_096, 32_000, 5),
        ("linear", 2_048, 4_096, 32_000, 5),
    ],
)
def test_memory(kind, batch, width, num_classes, limit):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    x = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(num_classes, (batch,), device="cuda")
    head = build(kind, width, num_classes, torch.bfloat16, bias=False)
    for _ in range(2):  # libraries take their workspace in the first step
        head.zero_grad()
        x.grad = None
        torch.cuda.reset_peak_memory_stats()
        fused_cross_entropy(head, x, target).backward()
    taken = torch.cuda.max_memory_allocated() - before
    weight, inputs = head.weight.nbytes, 2 * x.nbytes + target.nbytes
    allowed = 1.6 * (2 * weight + inputs) if limit == "share" else limit * weight + inputs + (300 << 20)
    assert taken <= allowed, (taken >> 20, allowed / 2**20)


@pytest.fixture
def waiting_is_an_error():
    mode = torch.cuda.get_sync_debug_mode()
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode(mode)


@both
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_the_host_never_waits(impl, waiting_is_an_error):
    head, x, target = problem("ordered", 256, 64, 5_000, torch.bfloat16)
    options = every_option(5_000, 256)

    def step():
        loss = fused_cross_entropy(head, x, target, impl=impl, **options)
        return gradients(loss, head, x)

    step()
    waiting_is_an_error()
    found = step()
    torch.cuda.set_sync_debug_mode("default")
    assert all(t.isfinite().all() for t in found)


@both
@pytest.mark.parametrize("kind", ["maxsep", "linear"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_labels_out_of_range_give_nan(impl, kind, reduction):
    head, x, target = problem(kind, 40, 64, 300, torch.bfloat16)
    target[3] = -100
    assert fused_cross_entropy(head, x, target, impl=impl, reduction=reduction).isfinite()
    for label in (300, -1, 2**40):
        target[5] = label
        assert fused_cross_entropy(head, x, target, impl=impl, reduction=reduction).isnan()
    target[:] = -100
    loss, *found = gradients(fused_cross_entropy(head, x, target, impl=impl, reduction=reduction), head, x)
    assert loss.isnan() if reduction == "mean" else loss == 0
    assert all((gradient == 0).all() for gradient in found)


@both
@pytest.mark.parametrize("kind", ["ordered", "linear"])
def test_compiled(impl, kind):
    head, x, target = problem(kind, 256, 64, 3_000, torch.bfloat16)

    def loss(x, target):
        return fused_cross_entropy(head, 2 * x, target, impl=impl, label_smoothing=0.1)

    ours, theirs = (gradients(f(x, target), head, x) for f in (torch.compile(loss, fullgraph=True), loss))
    assert max(off(ours, [t.double() for t in theirs])) < 1e-2


@both
@pytest.mark.parametrize("kind", ["ordered", "linear"])
def test_a_captured_training_step_is_the_eager_one(impl, kind):
    """What docs/guide/many_classes.md shows."""
    eager_head, x, target = problem(kind, 64, 64, 3_000)
    heads = [eager_head, copy.deepcopy(eager_head)]
    x, batches = x.detach(), torch.randn(4, 64, 64, device="cuda")

    def step_of(head):
        optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

        def step():
            optimiser.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                loss = fused_cross_entropy(head, x, target, impl=impl)
            loss.backward()
            optimiser.step()

        return step

    eager, graphed = map(step_of, heads)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            graphed()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed()  # only recorded
    for _ in range(3):
        eager()
    for batch in batches:
        x.copy_(batch)
        eager()
        graph.replay()
    for ours, theirs in zip(heads[1].parameters(), heads[0].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@both
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_retained_graph_gives_the_same_gradients_again(impl, dtype):
    head, x, target = problem("linear", 256, 512, 10_000, dtype)
    loss = fused_cross_entropy(head, x, target, impl=impl)
    leaves, scale = [x, *head.parameters()], torch.tensor(1024.0, device="cuda")
    first = torch.autograd.grad(loss, leaves, scale, retain_graph=True)
    kept = [gradient.clone() for gradient in first]
    second = torch.autograd.grad(loss, leaves, scale)
    assert max(off(second, [gradient.double() for gradient in kept])) < 1e-2
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))
    exact = exact_gradients(head, x, target)[1:]
    assert max(off(first, [4 * gradient for gradient in exact])) < SLACK[dtype]


@both
def test_strides_of_any_kind(impl):
    head, x, target = problem("linear", 64, 64, 1_000, torch.bfloat16)
    wide = torch.randn(64, 129, device="cuda", dtype=torch.bfloat16)
    labels = torch.stack([target, target], 1)[:, 0]
    for rows in (wide[:, 1:65], wide[:, ::2][:, :64], x.detach().T.contiguous().T, x.detach()[:1].expand(64, 64)):
        loss = fused_cross_entropy(head, rows, labels, impl=impl, reduction="sum")
        torch.testing.assert_close(loss.double(), exact_gradients(head, rows, target)[0], atol=0, rtol=1e-3)
