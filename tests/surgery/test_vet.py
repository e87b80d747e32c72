import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import maxsep
from maxsep.surgery import locate


def test_one_output():
    with pytest.raises(ValueError, match="has one output, which is a regression or a yes-or-no score"):
        locate(nn.Linear(4, 1))


def test_sigmoid_after_the_classifier():
    with pytest.raises(ValueError, match="followed by a Sigmoid: one decision per output"):
        locate(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()))


class Decisions(nn.Module):
    """A network that says yes or no to each label."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Sigmoid()
        self.fc = nn.Linear(4, 3)
        self.act = nn.Sigmoid()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 3)), nn.Sigmoid()),
        nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Sigmoid()),
        Decisions(),
    ],
    ids=["outside", "behind", "attribute"],
)
def test_sigmoid_further_out(model):
    with pytest.raises(ValueError, match="followed by a Sigmoid"):
        maxsep.attach(model)


def test_sigmoid_before_the_classifier_is_nobodys_business():
    assert locate(nn.Sequential(nn.Linear(4, 4), nn.Sigmoid(), nn.Linear(4, 3)))[0][0] == "2"


def test_tied_weight():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match=r"at '1' shares its parameters with '0\.weight'"):
        locate(model)


def test_layer_used_at_two_places():
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"shares its parameters with '0\.weight', '0\.bias'"):
        locate(nn.Sequential(layer, nn.ReLU(), layer), "2")


def test_lazy_layer():
    with pytest.raises(ValueError, match=r"has not seen an input yet. Run one batch"):
        locate(nn.Sequential(nn.LazyLinear(3)))


def test_computed_weight():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3)))
    with pytest.raises(ValueError, match=r"computes its weight from other parameters.*remove_parametrizations"):
        locate(model)


def test_packed_weight():
    layer = nn.Linear(4, 3)
    layer.weight = nn.Parameter(torch.zeros(6, 1, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ValueError, match="keeps a packed or quantised weight"):
        locate(layer)
