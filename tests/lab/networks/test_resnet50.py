"""The ResNets of ImageNet: their sizes, and torchvision's numbers from the same weights."""

import pytest
import torch

from maxsep.lab.engine.model import build_model
from maxsep.lab.networks import build
from maxsep.lab.spec import RunSpec


@pytest.mark.parametrize(("name", "parameters"), [("resnet50", 25_557_032), ("resnet152", 60_192_808)])
def test_parameters(name, parameters):
    with torch.device("meta"):
        network = build(name, 1000)
    assert sum(value.numel() for value in network.parameters()) == parameters
    assert network.num_features == 2048


def test_torchvision_computes_the_same_from_the_same_weights():
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    ours, theirs = build("resnet50", 7).eval(), models.resnet50(num_classes=7).eval()
    # both list their tensors in the order of their use, but for the shortcut, which comes last in a block there too
    values = list(ours.state_dict().values())
    names = list(theirs.state_dict())
    assert [value.shape for value in values] == [theirs.state_dict()[name].shape for name in names]
    theirs.load_state_dict(dict(zip(names, values, strict=True)))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images))


def test_convolutions_start_kaiming_normal_by_their_outputs_and_small_pictures_are_taken():
    network = build_model(RunSpec(network="resnet50", head="maxsep"), (3, 32, 32), 10)
    weight = network.blocks[-1].conv2.weight
    assert abs(weight.std().item() - (2 / (512 * 9)) ** 0.5) < 1e-3
    assert network.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 10)
