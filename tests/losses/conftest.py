"""Every loss once, built from the same counts, so that what all of them promise is tested on all of them."""

import pytest
import torch

from maxsep import losses, simplex

COUNTS = [500, 50, 5, 1]
PROTOTYPES = simplex(4, dtype=torch.float64).T

LOSSES = {
    "ldam": lambda: losses.LDAMLoss(COUNTS),
    "ldam_weighted": lambda: losses.LDAMLoss(COUNTS, weight=losses.effective_number_weights(COUNTS, device="cpu")),
    "logit_adjusted": lambda: losses.LogitAdjustedLoss(COUNTS, tau=1.5),
    "balanced_softmax": lambda: losses.BalancedSoftmaxLoss(COUNTS),
    "label_aware_smoothing": lambda: losses.LabelAwareSmoothingLoss(COUNTS, 0.4, 0.1),
    "squared_cosine": lambda: losses.SquaredCosineLoss(PROTOTYPES),
}


@pytest.fixture(params=LOSSES, scope="session")
def build(request):
    """A function that builds one of the losses."""
    return LOSSES[request.param]


@pytest.fixture
def batch():
    """A function that draws input and labels for a loss of four classes."""

    def draw(loss, size=6, seed=0, dtype=torch.float32):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(size, loss.width, generator=generator, dtype=torch.float64).to(dtype)
        return x, torch.randint(4, (size,), generator=generator)

    return draw
