"""Small networks for surgery, how far their numbers are apart, and what is refused."""

import pytest
from torch import Tensor, nn

import maxsep


class Named(nn.Module):
    """Children under these names, in this order."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def mlp(**options) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, **options))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return ((actual - expected).abs().max() / expected.abs().max()).item()


def refused(model: nn.Module, message: str, classifier: str | None = None) -> None:
    before = list(model.modules())
    with pytest.raises(ValueError, match=message):
        maxsep.attach(model, classifier=classifier)
    assert list(model.modules()) == before
