"""Networks of torchvision and timm by name, with their classifier replaced by `head`."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maxsep.lab.networks.small import Network, Shape
from maxsep.packages import load_package
from maxsep.surgery import replace_classifier

LIBRARIES = ("torchvision", "timm")


class External(Network):
    """A backbone of another library, without its classifier, and a linear head; scales images to `image_size`."""

    def __init__(self, backbone: nn.Module, num_features: int, num_outputs: int, image_size: int = 0) -> None:
        super().__init__()
        self.image_size = image_size
        self.num_features = num_features
        self.backbone = backbone
        self.head = nn.Linear(num_features, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the backbone's features (B, num_features)."""
        height, width = images.shape[2:]
        if self.image_size and (height, width) != (self.image_size, self.image_size):
            # scaling commutes with normalisation, so it may come after it, on the device
            shrinks, size = max(height, width) > self.image_size, (self.image_size, self.image_size)
            images = F.interpolate(images, size, mode="bilinear", align_corners=False, antialias=shrinks)
        features: Tensor = self.backbone(images)
        return features


def build_external(
    name: str, num_outputs: int, *, shape: Shape | None = None, image_size: int = 0, **options: Any
) -> External:
    """Build `torchvision/NAME` or `timm/NAME`, randomly initialised unless `options` ask for weights.

    With an `image_size` the network scales images of `shape` to squares of this side.
    """
    backbone = create(name, scaled_shape(shape, image_size), options)
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
    return External(backbone, widths[0], num_outputs, image_size)


def scaled_shape(shape: Shape | None, image_size: int) -> Shape | None:
    """Return the shape of images that are scaled to a side; 0 leaves them alone."""
    return (shape[0], image_size, image_size) if shape and image_size else shape


def create(name: str, shape: Shape | None, options: dict[str, Any]) -> Any:
    """Build a model of a library, with its own classifier."""
    library, _, model = name.partition("/")
    return (_create_timm if library == "timm" else _create_torchvision)(model, shape, options)


def _create_timm(model: str, shape: Shape | None, options: dict[str, Any]) -> Any:
    timm = import_library("timm")
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
    models = import_library("torchvision.models")
    if model not in models.list_models(module=models):
        raise ValueError(f"torchvision has no model named {model!r}; see torchvision.models.list_models().")
    if shape is not None and shape[0] != 3:
        raise ValueError(f"torchvision/{model} takes images of 3 channels, got {shape[0]}; timm/{model} takes any.")
    return models.get_model(model, **options)


def import_library(module: str) -> Any:
    """Import torchvision or timm; an ImportError says what to install."""
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
