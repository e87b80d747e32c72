"""The second pass in chunks: scratch behind the gradient where there is enough, and none that is held afterwards."""

import pytest
import torch

from maxsep.ops.fused import chunks, in_chunks, passes, row_losses
from maxsep.simplex import simplex

pytest.importorskip("maxsep.ops.fused.triton_form", reason="no Triton for this platform")
cuda = torch.cuda.is_available()


def matrix_of(basis, num_classes, dtype):
    return torch.eye(num_classes, dtype=dtype) if basis == "none" else simplex(num_classes, basis=basis, dtype=dtype)


def derivatives(form, num_classes, batch, width, basis):
    """Of both losses with everything they know: value, features, weight and offset."""
    torch.manual_seed(0)
    x, weight = torch.randn(batch, width), torch.randn(num_classes - 1, width)
    offset, shares, target = torch.randn(num_classes), torch.rand(num_classes), torch.randint(num_classes, (batch,))
    leaves = [leaf.requires_grad_() for leaf in (x, weight, offset)]
    options = {"radius": 0.7, "basis": basis, "smoothing": True, "form": form}
    nll, smooth = row_losses(x, weight, target, offset, shares, **options)
    u, v = torch.randn(2, batch)
    value = (u * nll).sum() + (v * smooth).sum()
    return [value, *torch.autograd.grad(value, leaves)]


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("basis", ["recursive", "householder"])
@pytest.mark.parametrize("width", [8, 6], ids=["in the product", "by rows"])
def test_chunks_whose_logits_lie_in_the_gradient(width, basis, monkeypatch):
    monkeypatch.setitem(chunks.OWN_LEAST, "cpu", 1 << 12)
    lenders = noted_lenders(monkeypatch)
    size = (2_101, 16, width, basis)
    for ours, theirs in zip(derivatives("triton", *size), derivatives("torch", *size), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=2e-5)
    borrowed = [lender for lender in lenders if lender is not None]
    assert len(borrowed) == 1  # the second pass of the kernels
    rows = 2_101 - (basis == "householder")
    assert rows < len(borrowed[0]) < 1.5 * rows


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("basis", ["recursive", "householder"])
@pytest.mark.parametrize("full", [True, False])
def test_half_precision_with_scratch_in_the_rounded_gradient(full, basis, monkeypatch):
    monkeypatch.setitem(chunks.OWN_LEAST, "cpu", 1 << 12)
    monkeypatch.setattr(passes, "GRAIN", 32)
    lenders = noted_lenders(monkeypatch)
    torch.manual_seed(0)
    # the interpreter multiplies the bits of bfloat16, not its numbers
    x, weight = torch.randn(64, 64).half(), torch.randn(999, 64).div(8).half()
    target, u = torch.randint(1000, (64,)), torch.rand(64)
    offset = torch.randn(1000) if full else None
    leaves = [leaf.requires_grad_() for leaf in (x, weight, offset) if leaf is not None]
    nll, _ = row_losses(x, weight, target, offset, basis=basis, form="triton")
    found = torch.autograd.grad((u * nll).sum(), leaves)
    beside = len(lenders[1]) - 1000 + (basis == "householder")
    assert lenders[0] is None
    assert beside * weight.shape[1] >= x.numel()
    assert found[0].untyped_storage().nbytes() == x.nbytes  # nothing of the scratch is held
    logits = x.double() @ weight.double().T @ matrix_of(basis, 1000, torch.float64) + (offset if full else 0)
    exact = torch.autograd.grad((u * torch.nn.functional.cross_entropy(logits, target, reduction="none")).sum(), leaves)
    for ours, theirs in zip(found, exact, strict=True):
        assert (ours.double() - theirs.double()).norm() < 2e-3 * theirs.double().norm()


@pytest.mark.skipif(cuda, reason="tests/cuda has the compiled kernels")
@pytest.mark.parametrize("basis", ["recursive", "none", "householder"])
@pytest.mark.parametrize(
    ("num_classes", "batch", "borrows"),
    [(40, 600, False), (1_000, 600, True)],
    ids=["a chunk larger than the gradient", "features larger than the scratch"],
)
def test_the_gradient_of_few_classes_keeps_no_scratch_of_many_samples(num_classes, batch, borrows, basis, monkeypatch):
    monkeypatch.setitem(chunks.OWN_LEAST, "cpu", 1 << 12)
    monkeypatch.setattr(passes, "GRAIN", 32)
    lenders = noted_lenders(monkeypatch)
    torch.manual_seed(0)
    x, weight = torch.randn(batch, 64).half(), torch.randn(num_classes - (basis != "none"), 64).div(8).half()
    target = torch.randint(num_classes, (batch,))
    x, weight = (leaf.requires_grad_() for leaf in (x, weight))
    options = {"separate": basis != "none", "basis": "recursive" if basis == "none" else basis}
    nll, _ = row_losses(x, weight, target, form="triton", **options)
    found = torch.autograd.grad(nll.sum(), (x, weight))
    assert (lenders[1] is not None) == borrows
    assert found[0].untyped_storage().nbytes() == x.nbytes
    beside = found[1].untyped_storage().nbytes() - weight.nbytes
    assert beside < x.nbytes
    assert beside <= weight.nbytes
    logits = x.double() @ weight.double().T @ matrix_of(basis, num_classes, torch.float64)
    exact = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target, reduction="sum"), (x, weight))
    for ours, theirs in zip(found, exact, strict=True):
        assert (ours.double() - theirs.double()).norm() < 4e-3 * theirs.double().norm()


def noted_lenders(monkeypatch):
    """What the scratch of each pass is cut from, None where it is its own."""
    lenders = []

    class Noted(chunks.Scratch):
        def __init__(self, sizes, chunks, like, lender=None):
            super().__init__(sizes, chunks, like, lender)
            lenders.append(lender)

    for module in (passes, in_chunks):
        monkeypatch.setattr(module, "Scratch", Noted)
    return lenders
