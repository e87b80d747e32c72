"""The course that every family of models runs: forward, backward, folded, reloaded."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_models import relative_error
from torch import Tensor, nn
from torch.nn import functional as F

import maxsep
from maxsep.surgery import find_heads

Logits = Callable[[nn.Module, Tensor], Tensor]


def plain(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)


@pytest.fixture
def exercise(tmp_path: Path) -> Callable[..., None]:
    """Run an attached model through all that a user does with it."""

    def run(model: nn.Module, x: Tensor, num_classes: int, logits: Logits = plain) -> None:
        goes_backward(model, x, num_classes, logits)
        with torch.no_grad():
            folded = folds(model.eval(), x, logits)
            reloads(model, folded, x, tmp_path / "saved", logits)

    return run


def goes_backward(model: nn.Module, x: Tensor, num_classes: int, logits: Logits) -> None:
    """Train mode, cross-entropy: the gradient reaches every head in use and the first layer of the network."""
    model.train()
    output = logits(model, x)
    assert output.shape == (len(x), num_classes)
    F.cross_entropy(output, torch.arange(len(x)) % num_classes).backward()
    main = find_heads(model)[0][1]
    assert main.weight.grad.abs().sum() > 0
    first = next(p for p in model.parameters() if p.grad is not None and p.grad.abs().sum() > 0)
    assert first is not main.weight, "no gradient before the head"
    model.zero_grad()


def folds(model: nn.Module, x: Tensor, logits: Logits) -> nn.Module:
    folded = maxsep.fold(model)
    assert relative_error(logits(folded, x), logits(model, x)) <= 1e-5
    assert not [name for name, part in folded.named_modules() if type(part).__module__.startswith("maxsep")]
    assert b"maxsep" not in pickle.dumps(folded)
    assert find_heads(model), "the original must be left alone"
    return folded


def reloads(model: nn.Module, folded: nn.Module, x: Tensor, folder: Path, logits: Logits) -> None:
    """Through torch.save and through maxsep.save, with heads and folded."""
    expected = logits(model, x)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    other = spoilt(model)
    assert relative_error(logits(other, x), expected) > 1e-2  # or the reload would prove nothing
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    assert torch.equal(logits(other, x), expected)

    for saved in (model, folded):
        other = spoilt(saved)
        maxsep.load(maxsep.save(saved, folder), other)
        assert torch.equal(logits(other, x), logits(saved, x))


def spoilt(model: nn.Module) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5)
    return other
