"""The fused loss where its kernels compile: run these on a GPU (`pytest tests/cuda`)."""

import sys

import pytest
import torch
from maxsep.ops.fused import passes
from maxsep.ops.fused.chunks import most_bytes
from maxsep.ops.fused.in_place import gradients_in_place
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead
from maxsep.heads import ScaledHead
from maxsep.losses import fused_cross_entropy

joined = pytest.importorskip("maxsep.ops.fused.joined", reason="no Triton for this platform")
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
ALL = {"label_smoothing": 0.1, "weight": True, "adjustment": True, "ignore_index": 3}


@pytest.fixture(params=["chunks", "held", "householder"])
def way(request, monkeypatch):
    """All ways to the loss: in chunks, by rows of outputs that are small enough to be held, and in the other basis."""
    if request.param == "chunks":
        monkeypatch.setattr(sys.modules["maxsep.losses.fused_cross_entropy"], "HELD_BYTES", 0)
    return request.param


def head_for(way, *sizes, **more):
    basis = "householder" if way == "householder" else "recursive"
    return MaxSeparationHead(*sizes, basis=basis, device="cuda", **more)


def options(chosen, num_classes):
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.rand(num_classes, generator=generator).cuda() if value is True else value
        for name, value in chosen.items()
    }


def compared(head, x, target, **given):
    """Relative errors of value and gradients of the fused loss against the unfused one in float64."""
    fused_cross_entropy(head, x, target, **given).backward()
    wide, wide_x = head.double(), x.detach().double().requires_grad_()
    fused = [x.grad, *(p.grad for p in head.parameters())]
    for parameter in head.parameters():
        parameter.grad = None
    shift = given.pop("adjustment", None)
    given = {name: v.double() if isinstance(v, torch.Tensor) else v for name, v in given.items()}
    F.cross_entropy(wide(wide_x) + (0 if shift is None else shift), target, **given).backward()
    exact = [wide_x.grad, *(p.grad for p in wide.parameters())]
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(fused, exact, strict=True)]


@pytest.mark.parametrize("chosen", [{}, ALL], ids=["plain", "all"])
@pytest.mark.parametrize("num_classes", [2, 5_000])
@pytest.mark.parametrize(("batch", "width"), [(33, 24), (256, 64), (8, 64)])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2), (torch.float16, 5e-3)])
def test_gradients(way, chosen, num_classes, batch, width, dtype, slack):
    torch.manual_seed(0)
    head = head_for(way, width, num_classes, radius=0.5)
    head.weight.data = head.weight.data.to(dtype).float()  # the reference starts from the rounded weight
    head = head.to(dtype)
    x = torch.randn(batch, width, device="cuda").to(dtype).requires_grad_()
    target = torch.randint(num_classes, (batch,), device="cuda")
    target[0] = num_classes - 1
    errors = compared(head, x, target, reduction="sum", **options(chosen, num_classes))
    assert max(errors) < slack, errors


@pytest.mark.parametrize("build", [lambda: nn.Linear(64, 5_000), lambda: ScaledHead(64, 5_000, radius=0.3)])
@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_heads_without_the_matrix(build, dtype, slack):
    torch.manual_seed(0)
    x = torch.randn(128, 64, device="cuda", dtype=dtype, requires_grad=True)
    head = build().to("cuda", dtype)
    assert max(compared(head, x, torch.randint(5_000, (128,), device="cuda"), reduction="sum")) < slack


@pytest.mark.parametrize("basis", ["recursive", "householder", "none"])
@pytest.mark.parametrize("chosen", [{}, ALL], ids=["plain", "all"])
@pytest.mark.parametrize(
    ("num_classes", "batch", "width"), [(40_001, 640, 512), (36_000, 520, 96), (90_000, 4096, 256)]
)
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32])
def test_gradients_without_scratch(num_classes, batch, width, weight_dtype, chosen, basis, monkeypatch):
    followed = []
    monkeypatch.setattr(sys.modules["maxsep.losses.fused_cross_entropy"], "HELD_BYTES", 0)
    monkeypatch.setattr(passes, "gradients_in_place", lambda *given: followed.append(1) or gradients_in_place(*given))
    torch.manual_seed(0)
    head = nn.Linear(width, num_classes).cuda() if basis == "none" else head_for(basis, width, num_classes)
    head.weight.data = head.weight.data.bfloat16().float()
    head = head.to(weight_dtype)
    x = torch.randn(batch, width, device="cuda").bfloat16().requires_grad_()
    target = torch.randint(num_classes, (batch,), device="cuda")
    target[:2] = torch.tensor([num_classes - 1, num_classes - 2])
    with torch.autocast("cuda", torch.bfloat16, enabled=weight_dtype == torch.float32):
        errors = compared(head, x, target, reduction="sum", **options(chosen, num_classes))
    assert followed
    assert max(errors) < 2e-2, errors


def test_autocast_with_weights_in_float32(way):
    torch.manual_seed(0)
    head = head_for(way, 64, 5_000)
    x = torch.randn(256, 64, device="cuda", requires_grad=True)
    target = torch.randint(5_000, (256,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = fused_cross_entropy(head, x, target)
    loss.backward()
    assert loss.dtype == head.weight.grad.dtype == x.grad.dtype == torch.float32
    exact = F.cross_entropy(head(x), target)
    torch.testing.assert_close(loss, exact, rtol=1e-3, atol=1e-3)
    for ours, theirs in zip((x.grad, head.weight.grad), torch.autograd.grad(exact, (x, head.weight)), strict=True):
        assert (ours - theirs).norm() < 2e-2 * theirs.norm()


@pytest.mark.parametrize("basis", ["recursive", "householder"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_classes", [100_000, 400_000])
def test_the_promise_of_memory(num_classes, bias, basis):
    """A twentieth of weight, its gradient and the features, that of these included; a bias takes numbers of its own.

    These are in float32: three a class, for the bias, what it adds to the logits, and the gradient of that; and the
    sums of this gradient over samples of every tile, for as many classes as a chunk has at most.
    """
    head = head_for(basis, 512, num_classes, bias=bias, dtype=torch.bfloat16)
    x = torch.randn(4096, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(num_classes, (4096,), device="cuda")
    peaks = []
    for _ in range(4):
        head.zero_grad()
        x.grad = None
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        fused_cross_entropy(head, x, target).backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    needed = 2 * head.weight.nbytes + x.nbytes
    # libraries take their workspace in the first step, and recordings theirs; they are made in the second or later
    taken = max(peaks[1:]) + head.weight.nbytes + x.nbytes
    form = joined.form_of(x, forward=False)
    lines = form.LINES * -(-len(x) // form.blocks(forward=False)[0][0][0])
    chunk = most_bytes(x.device) // (len(x) * x.element_size())
    allowed = 1.05 * needed + (4 * (3 * num_classes + lines * chunk) if bias else 0)
    assert taken <= allowed, (taken / needed, allowed / needed)


@pytest.fixture
def waiting_is_an_error():
    mode = torch.cuda.get_sync_debug_mode()
    yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode(mode)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_the_host_never_waits(way, waiting_is_an_error):
    head = head_for(way, 64, 5_000)
    x = torch.randn(256, 64, device="cuda", requires_grad=True)
    target = torch.randint(5_000, (256,), device="cuda")
    fused_cross_entropy(head, x, target, label_smoothing=0.1).backward()
    x.grad = None
    waiting_is_an_error()
    fused_cross_entropy(head, x, target, label_smoothing=0.1).backward()
    torch.cuda.set_sync_debug_mode("default")
    assert x.grad.isfinite().all()


def test_labels_out_of_range_give_nan(way):
    head = head_for(way, 8, 300)
    target = torch.tensor([1, 300, 5], device="cuda")
    assert fused_cross_entropy(head, torch.randn(3, 8, device="cuda"), target).isnan()


def test_compiled(way):
    head = head_for(way, 64, 3_000)
    x = torch.randn(256, 64, device="cuda")
    target = torch.randint(3_000, (256,), device="cuda")
    step = torch.compile(lambda x: fused_cross_entropy(head, 2 * x, target), fullgraph=True)
    torch.testing.assert_close(step(x), fused_cross_entropy(head, 2 * x, target))


def test_captured(way):
    head = head_for(way, 64, 3_000)
    x, target = torch.randn(256, 64, device="cuda"), torch.randint(3_000, (256,), device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            torch.autograd.grad(fused_cross_entropy(head, x, target), list(head.parameters()))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.autograd.grad(fused_cross_entropy(head, x, target), list(head.parameters()))
    x.normal_()
    graph.replay()
    for ours, theirs in zip(
        found, torch.autograd.grad(F.cross_entropy(head(x), target), head.parameters()), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_captured_training_step_is_the_eager_one(way):
    """What docs/using.md shows."""
    torch.manual_seed(0)
    heads = [head_for(way, 32, 1_000) for _ in range(2)]
    heads[1].load_state_dict(heads[0].state_dict())
    batches, target = torch.randn(6, 64, 32, device="cuda"), torch.randint(1_000, (64,), device="cuda")
    x = batches[0].clone()

    def step_of(head):
        optimiser = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

        def step():
            optimiser.zero_grad()
            fused_cross_entropy(head, x, target).backward()
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
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_labels_of_any_stride(way):
    head, x = head_for(way, 8, 300), torch.randn(3, 8, device="cuda")
    target = torch.tensor([1, 7, 5, 7, 299, 7], device="cuda")[::2]
    torch.testing.assert_close(fused_cross_entropy(head, x, target), F.cross_entropy(head(x), target))


def test_no_second_derivatives(way):
    head, x = head_for(way, 8, 300), torch.randn(3, 8, device="cuda", requires_grad=True)
    loss = fused_cross_entropy(head, x, torch.tensor([1, 7, 5], device="cuda"))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        gradient.sum().backward()
