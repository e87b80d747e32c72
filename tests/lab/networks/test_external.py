import importlib
import sys

import pytest
import torch
from torch import nn

from maxsep.lab import networks


@pytest.mark.parametrize(("name", "features"), [("resnet18", 512), ("mobilenet_v3_small", 1024)])
def test_a_torchvision_model_gives_features_and_carries_a_head(name, features):
    network = networks.build(f"torchvision/{name}", 7, shape=(3, 32, 32)).eval()
    images = torch.randn(2, 3, 32, 32)
    assert network.num_features == features
    assert network.features(images).shape == (2, features)
    assert torch.equal(network(images), network.head(network.features(images)))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("resnet18", (1, 32, 32)), ("vit_tiny_patch16_224", (3, 32, 32)), ("mobilenetv3_small_050", (3, 32, 32))],
)
def test_a_timm_model_takes_the_shape_of_the_images(name, shape):
    network = networks.build(f"timm/{name}", 7, shape=shape).eval()
    images = torch.randn(2, *shape)
    assert network.features(images).shape == (2, network.num_features)
    assert network(images).shape == (2, 7)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_an_unknown_model_is_named(library):
    with pytest.raises(ValueError, match=rf"{library} has no model named 'resnet19'.*list_models"):
        networks.build(f"{library}/resnet19", 10)


def test_a_model_without_a_linear_classifier_is_refused():
    message = r"torchvision/squeezenet1_0.*Conv2d"
    with pytest.raises(ValueError, match=message):
        networks.build("torchvision/squeezenet1_0", 10)


def test_a_model_with_a_second_classifier_is_refused():
    message = r"timm/deit_tiny_distilled_patch16_224 does not end in one .*it has 2 of them"
    with pytest.raises(ValueError, match=message):
        networks.build("timm/deit_tiny_distilled_patch16_224", 10, shape=(3, 32, 32))


def test_a_model_built_without_its_auxiliary_classifiers_has_one_left():
    network = networks.build("torchvision/googlenet", 7, aux_logits=False, init_weights=False)
    assert network.num_features == 1024
    assert network(torch.randn(2, 3, 64, 64)).shape == (2, 7)


def test_torchvision_models_want_three_channels():
    with pytest.raises(ValueError, match=r"takes images of 3 channels, got 1. Use timm/resnet18"):
        networks.build("torchvision/resnet18", 10, shape=(1, 32, 32))


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r'timm/NAME need timm.*pip install "maxsep\[vision\]"'):
        networks.build("timm/resnet18", 10)


@pytest.mark.parametrize(("version", "index"), [("2.9.1+cpu", True), ("2.9.1", False), ("2.9.1+cu130", False)])
def test_advice_names_the_index_that_a_cpu_build_came_from(monkeypatch, version, index):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setitem(sys.modules, "timm", None)
    at = "--index-url https://download.pytorch.org/whl/cpu"
    with pytest.raises(ImportError) as missing:
        networks.build("timm/resnet18", 10)
    assert (f': pip install torchvision {at} && pip install "maxsep[vision]"' in str(missing.value)) == index
    monkeypatch.setattr(importlib, "import_module", lambda name: exec("raise RuntimeError('nms')"))
    with pytest.raises(ImportError) as broken:
        networks.build("timm/resnet18", 10)
    assert str(broken.value).endswith(f"torch torchvision {at}" if index else "torch torchvision")


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("operator torchvision::nms does not exist"),
        AttributeError("partially initialized module 'torchvision'"),  # the second attempt after the first
        ImportError("libcudart.so.13: cannot open shared object file"),
    ],
)
def test_a_torchvision_of_another_torch_is_one_clear_import_error(monkeypatch, library, error):
    def broken(name):
        raise error

    monkeypatch.setattr(importlib, "import_module", broken)
    message = rf"{library} is installed but cannot be imported beside torch 2\..*torchvision.*belong together"
    with pytest.raises(ImportError, match=message if "lib" not in str(error) else "belong together") as caught:
        networks.build(f"{library}/resnet18", 10)
    assert "pip install --force-reinstall torch torchvision" in str(caught.value)


def test_options_reach_the_library():
    network = networks.build("torchvision/resnet18", 10, norm_layer=nn.Identity)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
