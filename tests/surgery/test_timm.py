"""timm's protocol around the classifier holds with a head in it."""

import copy

import pytest
import timm
import torch
from torch import nn

import maxsep
from maxsep import MaxSeparationHead
from maxsep.surgery import find_heads

CLASSES = 7
TINY = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}

MODELS = {
    "resnet10t": ({}, ["fc"]),
    "vit_tiny_patch16_224": (TINY, ["head"]),
    "deit_tiny_distilled_patch16_224": (TINY, ["head", "head_dist"]),
    "levit_128s": ({"depth": (1, 1, 1)}, ["head.linear", "head_dist.linear"]),
    "convnext_atto": ({"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 16)}, ["head.fc"]),
    "mobilenetv3_small_050": ({}, ["classifier"]),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (1, 1), "num_heads": (1, 2)},
        ["head.fc"],
    ),
    "repvit_m0_9": ({"depth": (1, 1), "embed_dim": (16, 32), "num_classes": 10}, ["head.head.l", "head.head_dist.l"]),
}


def make(name: str, **options) -> nn.Module:
    return timm.create_model(name, **{"num_classes": 10} | MODELS[name][0] | options)


def size(name: str) -> int:
    return 224 if name.startswith("levit") else 32


@pytest.mark.parametrize("name", MODELS)
def test_model(name, exercise):
    torch.manual_seed(0)
    model = make(name)
    x = torch.randn(4, 3, size(name), size(name))
    maxsep.attach(model, CLASSES)
    assert [path for path, _ in find_heads(model)] == MODELS[name][1]
    assert model.num_classes == CLASSES
    exercise(model, x, CLASSES)


CONVOLUTIONS = {
    "resnetv2_50": ({"layers": (1, 1, 1, 1), "channels": (8, 8, 8, 16), "stem_chs": 8}, "head.fc"),
    "dla34": ({}, "fc"),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_classifiers_that_are_convolutions(name, exercise):
    torch.manual_seed(0)
    options, path = CONVOLUTIONS[name]
    model = timm.create_model(name, num_classes=10, **options)
    model.get_submodule(path).bias.requires_grad_(False)
    x = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        before = model.eval()(x).softmax(-1)
        kept = maxsep.attach(copy.deepcopy(model), radius=0.3, keep_weights=True)
        torch.testing.assert_close(kept(x).softmax(-1), before)
    assert [p.requires_grad for p in maxsep.fold(kept).get_submodule(path).parameters()] == [True, False]
    maxsep.attach(model, CLASSES)
    assert model.num_classes == CLASSES
    exercise(model, x, CLASSES)
    folded = maxsep.fold(model).get_submodule(path)
    assert type(folded) is nn.Conv2d
    assert folded.bias.requires_grad
    maxsep.grow(model, 2)
    assert model(x).shape == (4, CLASSES + 2)
    assert model.num_classes == CLASSES + 2
    model.reset_classifier(3)
    assert model(x).shape == (4, 3)


ONE_HEAD = [name for name, (_, paths) in MODELS.items() if len(paths) == 1]


@pytest.mark.parametrize("name", ONE_HEAD)
def test_protocol(name):
    torch.manual_seed(0)
    model = make(name).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = model.forward_head(model.forward_features(x), pre_logits=True)
        maxsep.attach(model, CLASSES)
        head = model.get_classifier()
        assert isinstance(head, MaxSeparationHead)
        pre_logits = model.forward_head(model.forward_features(x), pre_logits=True)
        assert torch.equal(pre_logits, before)
        assert torch.equal(head(pre_logits), model(x))

    model.reset_classifier(3)
    assert isinstance(model.get_classifier(), nn.Linear)
    assert model.num_classes == 3
    assert not find_heads(model)
    assert model(x).shape == (2, 3)
    maxsep.attach(model)
    assert model(x).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("volo_d1_224", ["head", "aux_head"]),
        ("crossvit_tiny_240", ["head.0", "head.1"]),
        ("caformer_s18", ["head.fc.fc2"]),
        ("efficientformer_l1", ["head", "head_dist"]),
        ("inception_v3", ["fc"]),
        ("sequencer2d_s", ["head.fc"]),
    ],
)
def test_every_head_of_unusual_models_is_swapped(name, paths):
    with torch.device("meta"):
        model = maxsep.attach(timm.create_model(name, num_classes=10), CLASSES)
    assert [path for path, _ in find_heads(model)] == paths
    assert model.num_classes == CLASSES


def test_model_without_classifier():
    with pytest.raises(ValueError, match=r"get_classifier.*Identity"):
        maxsep.attach(make("resnet10t", num_classes=0), CLASSES)
