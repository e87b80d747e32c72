"""Networks of torchvision and timm by name, with their classifier replaced by `head`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.lab.networks.small import Network, Shape
from maxsep.packages import load_package
from maxsep.surgery import replace_classifier

LIBRARIES = ("torchvision", "timm")


class External(Network):
    """A backbone of another library, without its classifier, and a linear head."""

    def __init__(self, backbone: nn.Module, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.backbone = backbone
        self.head = nn.Linear(num_features, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the backbone's features (B, num_features)."""
        features: Tensor = self.backbone(images)
        return features


def build_external(name: str, num_outputs: int, *, shape: Shape | None = None, **options: Any) -> External:
    """Build `torchvision/NAME` or `timm/NAME`, randomly initialised unless `options` ask for weights.

    Raises:
        ImportError: The library is missing, or its compiled part does not match this torch.
        ValueError: The library has no such model, or the model has no linear classifier.
    """
    library, _, model = name.partition("/")
    backbone = (_create_timm if library == "timm" else _create_torchvision)(model, shape, options)
    widths: list[int] = []

    def remove(classifier: nn.Linear) -> nn.Module:
        widths.append(classifier.in_features)
        return nn.Identity()

    try:
        replace_classifier(backbone, remove)
        if len(widths) > 1:
            raise ValueError(f"it has {len(widths)} of them, with auxiliary or distilled ones")
    except ValueError as error:
        raise ValueError(f"{name} does not end in one linear classifier: {error}.") from error
    return External(backbone, widths[0], num_outputs)


def _create_timm(model: str, shape: Shape | None, options: dict[str, Any]) -> Any:
    timm = _import("timm")
    if not timm.is_model(model):
        raise ValueError(f"timm has no model named {model!r}; see timm.list_models().")
    if shape is not None:
        options = {"in_chans": shape[0]} | options
        # vision transformers fix the image size when they are built; convolutional networks do not
        takes_size = "img_size" in inspect.signature(timm.model_entrypoint(model)).parameters
        if takes_size or model.startswith(("vit_", "deit", "swin")):
            options = {"img_size": shape[1]} | options
    return timm.create_model(model, **options)


def _create_torchvision(model: str, shape: Shape | None, options: dict[str, Any]) -> Any:
    models = _import("torchvision.models")
    if model not in models.list_models(module=models):
        raise ValueError(f"torchvision has no model named {model!r}; see torchvision.models.list_models().")
    if shape is not None and shape[0] != 3:
        raise ValueError(f"torchvision/{model} takes images of 3 channels, got {shape[0]}; timm/{model} takes any.")
    return models.get_model(model, **options)


def _import(module: str) -> Any:
    try:
        return load_package(module, "vision")
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise
        # a torchvision built for another torch fails in its operator registration with a RuntimeError, and when it is
        # imported once more with an AttributeError; timm imports torchvision
        index = " --index-url https://download.pytorch.org/whl/cpu" if torch.__version__.endswith("+cpu") else ""
        raise ImportError(
            f"{module} cannot be imported with torch {torch.__version__} ({error}). Install matching builds: "
            f"pip install --force-reinstall torch torchvision{index}"
        ) from error
