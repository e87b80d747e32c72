import importlib
import sys

import pytest
import torch
from torch import nn

from maxsep.lab import networks


@pytest.mark.parametrize(
    ("name", "channels", "features"),
    [
        *(("torchvision/resnet18", 3, 512), ("torchvision/mobilenet_v3_small", 3, 1024)),
        *(("torchvision/squeezenet1_1", 3, 512), ("timm/resnet18", 1, 512)),
        *(("timm/vit_tiny_patch16_224", 3, 192), ("timm/mobilenetv3_small_050", 3, 1024)),
    ],
)
def test_a_model_takes_the_shape_of_the_images_gives_features_and_carries_a_head(name, channels, features):
    network = networks.build(name, 7, shape=(channels, 32, 32)).eval()
    images = torch.randn(2, channels, 32, 32)
    assert network.num_features == features
    assert network.features(images).shape == (2, features)
    assert network(images).shape == (2, 7)
    assert torch.equal(network(images), network.head(network.features(images)))


def test_options_reach_the_library_and_remove_auxiliary_classifiers():
    network = networks.build("torchvision/resnet18", 10, norm_layer=nn.Identity)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert networks.build("torchvision/googlenet", 7, aux_logits=False, init_weights=False).num_features == 1024


@pytest.mark.parametrize(
    ("name", "options", "noun"),
    [
        ("torchvision/resnet19", {}, "resnet19"),
        ("timm/resnet19", {}, "resnet19"),
        ("timm/deit_tiny_distilled_patch16_224", {"shape": (3, 32, 32)}, "2 of them"),
        ("torchvision/resnet18", {"shape": (1, 32, 32)}, "3 channels, got 1"),
    ],
)
def test_models_that_do_not_exist_or_do_not_fit_are_refused(name, options, noun):
    with pytest.raises(ValueError, match=noun):
        networks.build(name, 10, **options)


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"\.\[vision\]"):
        networks.build("timm/resnet18", 10)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operator torchvision::nms does not exist"),
        AttributeError("partially initialized module 'torchvision'"),  # the second attempt after the first
        ImportError("libcudart.so.13: cannot open shared object file"),
    ],
)
def test_a_torchvision_of_another_torch_is_one_import_error(monkeypatch, library, error):
    def broken(name):
        raise error

    monkeypatch.setattr(importlib, "import_module", broken)
    for version, at_index in (("2.9.1+cpu", True), ("2.9.1", False)):
        monkeypatch.setattr(torch, "__version__", version)
        with pytest.raises(ImportError, match="force-reinstall") as caught:
            networks.build(f"{library}/resnet18", 10)
        assert ("whl/cpu" in str(caught.value)) == at_index
