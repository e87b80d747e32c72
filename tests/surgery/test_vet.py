import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from maxsep.surgery import locate


def test_one_output():
    with pytest.raises(ValueError, match="has one output, which is a regression or a yes-or-no score"):
        locate(nn.Linear(4, 1))


def test_sigmoid_after_the_classifier():
    with pytest.raises(ValueError, match="followed by a Sigmoid: one decision per output"):
        locate(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()))


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
