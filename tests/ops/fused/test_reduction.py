"""From losses of samples to one number: as torch makes it, by one kernel each way, and what labels that are none do."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from maxsep.ops.fused import reduction
from maxsep.ops.fused.reduction import Counting, reduced

pytest.importorskip("triton")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda has the compiled kernels")
CLASSES = 7


def problem(batch, seed=0, weighted=False):
    """Values of samples, labels of which some are ignored, and weights of classes."""
    torch.manual_seed(seed)
    nll, smooth = (torch.rand(batch).requires_grad_() for _ in range(2))
    target = torch.randint(CLASSES, (batch,))
    target[torch.rand(batch) < 0.2] = -100
    return nll, smooth, target, torch.rand(CLASSES) + 0.1 if weighted else None


def both(nll, smooth, target, weight, counting, upstream=1.0):
    """Return loss and gradients by torch, and by the kernels."""
    found = []
    for function in (reduced, reduction._Reduced.apply):
        loss = function(nll, smooth, target, weight, counting)
        gradients = torch.autograd.grad(loss, (nll, smooth), loss.new_tensor(upstream), allow_unused=True)
        found.append((loss, *(torch.zeros(len(nll)) if g is None else g for g in gradients)))
    return found


@interpreted
@given(
    batch=st.integers(1, 40),
    seed=st.integers(0, 99),
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.3, 1.0]),
    kind=st.sampled_from(["mean", "sum"]),
    ignored=st.sampled_from([-100, 3]),
)
def test_kernels_do_what_torch_does(batch, seed, weighted, smoothing, kind, ignored):
    nll, smooth, target, weight = problem(batch, seed, weighted)
    target = torch.where(target == -100, ignored, target)
    counting = Counting(CLASSES, ignored, smoothing, kind)
    for theirs, ours in zip(*both(nll, smooth, target, weight, counting, 2.5), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@interpreted
@pytest.mark.parametrize("lie", [lambda w: torch.stack([w, w], 1)[:, 1], lambda w: w[:1].expand(len(w))])
def test_weights_may_lie_anyhow(lie):
    nll, smooth, target, weight = problem(30, weighted=True)
    for theirs, ours in zip(*both(nll, smooth, target, lie(weight), Counting(CLASSES, -100, 0.1, "mean")), strict=True):
        torch.testing.assert_close(ours, theirs)


@interpreted
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_a_batch_of_gradients(weighted, smoothing, kind):
    nll, smooth, target, weight = problem(12, weighted=weighted)
    target[3] = CLASSES
    counting, several = Counting(CLASSES, -100, smoothing, kind), torch.tensor([1.0, -2.0, 0.5])
    loss = reduction._Reduced.apply(nll, smooth, target, weight, counting)
    found = torch.autograd.grad(loss, (nll, smooth), several, is_grads_batched=True, retain_graph=True)
    one = torch.autograd.grad(loss, (nll, smooth), several[1], allow_unused=True)
    for batch, row in zip(found, one, strict=True):
        torch.testing.assert_close(batch[1], torch.zeros(12) if row is None else row)
        torch.testing.assert_close(batch[0], 2 * batch[2])


@interpreted
@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_more_samples_than_a_program_holds_at_once(monkeypatch, kind):
    monkeypatch.setattr(reduction, "AT_ONCE", 16)
    for theirs, ours in zip(*both(*problem(53), Counting(CLASSES, -100, 0.1, kind)), strict=True):
        torch.testing.assert_close(ours, theirs)


@interpreted
@pytest.mark.parametrize("label", [-1, CLASSES, 10**9])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_label_that_is_no_class_makes_the_loss_nan_and_pulls_nothing(label, weighted):
    nll, smooth, target, weight = problem(9, weighted=weighted)
    target[4] = label
    for loss, *gradients in both(nll, smooth, target, weight, Counting(CLASSES, -100, 0.1, "mean")):
        assert loss.isnan()
        for gradient in gradients:
            assert gradient[4] == 0
            assert gradient.isfinite().all()


@interpreted
@pytest.mark.parametrize("weighted", [False, True])
def test_nothing_that_counts(weighted):
    nll, smooth, _, weight = problem(5, weighted=weighted)
    for kind, value in (("mean", math.nan), ("sum", 0.0)):
        for loss, *gradients in both(nll, smooth, torch.full((5,), -100), weight, Counting(CLASSES, -100, 0.1, kind)):
            torch.testing.assert_close(loss, torch.tensor(value), equal_nan=True)
            assert not any(gradient.any() for gradient in gradients)


@interpreted
def test_values_that_do_not_count_may_be_anything():
    nll, smooth, target, _ = problem(5)
    target[2] = -100
    broken = nll.detach().clone()
    broken[2] = math.nan
    for loss, gradient, _ in both(broken.requires_grad_(), smooth, target, None, Counting(CLASSES, -100, 0.0, "mean")):
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_it_is_what_cross_entropy_does(kind, smoothing):
    torch.manual_seed(0)
    logits, target, weight = torch.randn(20, CLASSES).double(), problem(20)[2], torch.rand(CLASSES).double()
    logs = logits.log_softmax(1)
    nll = -logs.gather(1, target.clamp(min=0)[:, None])[:, 0]
    smooth = -(logs * weight).mean(1)
    found = reduced(nll, smooth, target, weight, Counting(CLASSES, -100, smoothing, kind))
    wanted = F.cross_entropy(logits, target, weight, reduction=kind, label_smoothing=smoothing)
    torch.testing.assert_close(found, wanted)


def test_kernels_are_for_samples_that_one_program_adds_up(monkeypatch):
    class Pretended:
        is_cuda, dtype, device = True, torch.float32, torch.device("cuda", 0)

        def __init__(self, size):
            self.size = size

        def __len__(self):
            return self.size

    monkeypatch.setattr(reduction, "is_supported", lambda index: True)
    assert reduction._suits(Pretended(reduction.MOST_SAMPLES))
    assert not reduction._suits(Pretended(reduction.MOST_SAMPLES + 1))
    assert not reduction._suits(torch.zeros(4))


@interpreted
def test_kernels_are_taken_where_they_suit_and_nobody_looks_on(monkeypatch):
    given = (*problem(9)[:3], None, Counting(CLASSES, -100, 0.0, "mean"))
    wanted = reduced(*given)
    monkeypatch.setattr(reduction, "_suits", lambda nll: True)
    monkeypatch.setattr(reduction, "_values", None)
    torch.testing.assert_close(reduced(*given), wanted)


def test_a_compiler_is_not_asked_how_many_samples_there_are(monkeypatch):
    monkeypatch.setattr(reduction, "_suits", None)

    def loss(nll, target):
        return reduced(nll, nll, target, None, Counting(CLASSES, -100, 0.0, "mean"))

    nll, _, target, _ = problem(9)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    torch.testing.assert_close(
        compiled(nll.detach(), target), F.nll_loss(-nll.detach()[:, None].expand(9, CLASSES), target)
    )
