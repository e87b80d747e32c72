"""Every torchvision family, in its own structure and the smallest size that its constructor allows."""

import pytest
import torch
import torchvision.models as zoo
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.swin_transformer import SwinTransformer
from torchvision.models.vision_transformer import VisionTransformer

import maxsep
from maxsep.surgery import find_heads

CLASSES = 7


def vgg() -> nn.Module:
    with torch.device("meta"):
        model = zoo.vgg11(init_weights=False)
    model.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())  # 130 million weights would say nothing more
    model.classifier[0] = nn.Linear(4 * 7 * 7, 8)
    model.classifier[3] = nn.Linear(8, 16)
    model.classifier[6] = nn.Linear(16, 10)
    return model


FAMILIES = {
    "resnet": (lambda: ResNet(BasicBlock, [1, 1, 1, 1]), "fc"),
    "vgg": (vgg, "classifier.6"),
    "densenet": (lambda: DenseNet(4, (1, 1, 1, 1), 8), "classifier"),
    "mobilenet_v3": (zoo.mobilenet_v3_small, "classifier.3"),
    "efficientnet": (zoo.efficientnet_b0, "classifier.1"),
    "convnext": (lambda: ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)]), "classifier.2"),
    "vit": (lambda: VisionTransformer(32, 16, 1, 2, 16, 16), "heads.head"),
    "swin": (lambda: SwinTransformer([2, 2], 8, [1, 1], [1, 2], [2, 2]), "head"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, exercise):
    torch.manual_seed(0)
    build, path = FAMILIES[family]
    model = build()
    x = torch.randn(4, 3, 32, 32)
    assert maxsep.attach(model, CLASSES, radius=0.5) is model
    assert [where for where, _ in find_heads(model)] == [path]
    exercise(model, x, CLASSES)


def test_googlenet_auxiliary_heads_are_swapped_and_trained(exercise):
    torch.manual_seed(0)
    model = maxsep.attach(zoo.googlenet(init_weights=False, aux_logits=True), CLASSES)
    assert [path for path, _ in find_heads(model)] == ["fc", "aux1.fc2", "aux2.fc2"]
    outputs = model(torch.randn(2, 3, 32, 32))
    assert [tuple(output.shape) for output in outputs] == [(2, CLASSES)] * 3
    sum(output.square().mean() for output in outputs).backward()
    assert all(head.weight.grad.abs().sum() > 0 for _, head in find_heads(model))
    model.zero_grad()
    exercise(model, torch.randn(2, 3, 32, 32), CLASSES, lambda m, x: m(x).logits if m.training else m(x))


def test_squeezenet_ends_in_a_convolution_a_relu_and_pooling(exercise):
    torch.manual_seed(0)
    model = zoo.squeezenet1_0(num_classes=10)
    with pytest.raises(ValueError, match="keep_weights"):
        maxsep.attach(model, keep_weights=True)  # the ReLU sees the mean logit, which P drops
    maxsep.attach(model, CLASSES)
    assert model.num_classes == CLASSES
    exercise(model, torch.randn(2, 3, 64, 64), CLASSES)
    assert type(maxsep.fold(model).classifier[1]) is nn.Conv2d


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: zoo.segmentation.fcn_resnet50(weights=None, weights_backbone=None), r"classifier='classifier\.4'"),
        (lambda: zoo.detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None),
         "FasterRCNN.*cls_score.*1024 -> 91"),
    ],
    ids=["segmentation", "detection"],
)  # fmt: skip
def test_models_without_a_linear_classifier_are_refused(build, message):
    with torch.device("meta"):
        model = build()
    with pytest.raises(ValueError, match=message):
        maxsep.attach(model)
