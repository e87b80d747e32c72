import pytest
import torch

from maxsep.lab.networks import MLP


def test_a_single_image_can_be_trained_on():
    network = MLP(10).train()
    network(torch.randn(1, 1, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_the_last_width_is_the_number_of_features():
    assert MLP(3, shape=(3, 4, 4), hidden=(20, 12)).num_features == 12


@pytest.mark.parametrize("hidden", [(), (8, 0)])
def test_hidden_widths_must_be_positive(hidden):
    with pytest.raises(ValueError, match="hidden must name at least one width"):
        MLP(3, hidden=hidden)
