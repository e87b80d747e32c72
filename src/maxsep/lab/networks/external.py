"""Networks of torchvision and timm by name, with their classifier exposed as `head`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.lab.networks.base import Network, Shape
from maxsep.surgery import replace_classifier

LIBRARIES = ("torchvision", "timm")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class External(Network):
    """A foreign backbone whose classifier was taken off, and a linear head in its place.

    Args:
        backbone: Maps images (B, C, H, W) to features (B, num_features).
        num_features: Width of those features.
        num_outputs: Outputs of the linear head.
    """

    def __init__(self, backbone: nn.Module, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.num_features = num_features
        self.backbone = backbone
        self.head = nn.Linear(num_features, num_outputs)

    def features(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the foreign backbone's features (B, num_features)."""
        features: Tensor = self.backbone(images)
        return features


def build_external(name: str, num_outputs: int, *, shape: Shape | None = None, **options: Any) -> External:
    """Build `torchvision/NAME` or `timm/NAME`, randomly initialised unless `options` ask for weights.

    Args:
        name: Library and model, such as `torchvision/resnet18` or `timm/vit_tiny_patch16_224`.
        num_outputs: Outputs of the linear head.
        shape: Channels, height and width of an image, where it is known.
        **options: Passed to the library.

    Raises:
        ImportError: The library is missing, or its compiled part does not match this torch.
        ValueError: The library has no such model, or the model has no linear classifier.
    """
    library, _, model = name.partition("/")
    if library == "timm":
        return _build_timm(model, num_outputs, shape, options)
    return _build_torchvision(model, num_outputs, shape, options)


def _build_timm(model: str, num_outputs: int, shape: Shape | None, options: dict[str, Any]) -> External:
    timm = _import("timm")
    if not timm.is_model(model):
        raise ValueError(_unknown("timm", model, "timm.list_models()"))
    if shape is not None:
        options = {"in_chans": shape[0]} | options
        # vision transformers fix the image size when they are built; convolutional networks do not
        if _accepts(timm.model_entrypoint(model), "img_size") or model.startswith(("vit_", "deit", "swin")):
            options = {"img_size": shape[1]} | options
    return _take_over(timm.create_model(model, **options), f"timm/{model}", num_outputs)


def _build_torchvision(model: str, num_outputs: int, shape: Shape | None, options: dict[str, Any]) -> External:
    models = _import("torchvision.models")
    if model not in models.list_models(module=models):
        raise ValueError(_unknown("torchvision", model, "torchvision.models.list_models()"))
    if shape is not None and shape[0] != 3:
        raise ValueError(
            f"torchvision/{model} takes images of 3 channels, got {shape[0]}. "
            f"Use timm/{model} or a network of maxsep, which take any number."
        )
    return _take_over(models.get_model(model, **options), f"torchvision/{model}", num_outputs)


def _take_over(backbone: nn.Module, name: str, num_outputs: int) -> External:
    """Take the classifier off, wherever the library has put it."""
    widths: list[int] = []

    def take_off(classifier: nn.Linear) -> nn.Module:
        widths.append(classifier.in_features)
        return nn.Identity()

    try:
        replace_classifier(backbone, take_off)
        if len(widths) > 1:
            raise ValueError(f"it has {len(widths)} of them, auxiliary or distilled ones included")
    except ValueError as error:
        raise ValueError(
            f"{name} does not end in one linear classifier, so it cannot carry another head: {error}. "
            "Use a model such as torchvision/resnet18 or timm/resnet18."
        ) from error
    return External(backbone, widths[0], num_outputs)


def _import(module: str) -> Any:
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        first = f"pip install torchvision{_index()} && " if _index() else ""
        raise ImportError(
            f'networks named {package}/NAME need {package}. Install it with: {first}pip install "maxsep[vision]"'
        ) from error
    except (ImportError, RuntimeError, AttributeError, OSError) as error:
        # a torchvision built for another torch fails in its operator registration with a RuntimeError, and when it is
        # imported once more with an AttributeError; timm imports torchvision
        raise ImportError(
            f"{package} is installed but cannot be imported beside torch {torch.__version__} ({error}). torch and "
            "torchvision must be builds that belong together. Install both anew from one place: "
            f"pip install --force-reinstall torch torchvision{_index()}"
        ) from error


def _index() -> str:
    """Name the index of CPU builds where torch came from it: the wheel of the usual index fails beside them."""
    return f" --index-url {CPU_INDEX}" if torch.__version__.endswith("+cpu") else ""


def _unknown(library: str, model: str, listing: str) -> str:
    return f"{library} has no model named {model!r}. {listing} prints the names that it has."


def _accepts(function: Callable[..., Any], option: str) -> bool:
    return option in inspect.signature(function).parameters
