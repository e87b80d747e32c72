"""Replace the classifier of a model by a head."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from maxsep.heads import MaxSeparationHead
from maxsep.surgery.locate import activation_behind, locate
from maxsep.surgery.pointwise import Pointwise, as_linear
from maxsep.surgery.pretrained import fold_on_save


def attach(
    model: nn.Module,
    num_classes: int | None = None,
    radius: float = 1.0,
    *,
    class_order: Sequence[int] | Tensor | None = None,
    classifier: str | None = None,
    keep_weights: bool = False,
) -> nn.Module:
    """Replace the classifier of a model by a MaxSeparationHead, in place, and return the model.

    Works on torchvision, timm and transformers classifiers and on plain modules, also inside a LightningModule or
    AveragedModel; auxiliary and distillation heads are replaced too. The classifier is an nn.Linear, or a 1 x 1
    convolution next to a pooling layer, at the end of an nn.Sequential or under a usual name (`classifier`, `head`,
    `fc`); others need `classifier=`. Device, dtype, bias and train mode are kept. A new head is trainable, also if the
    classifier was frozen; with `keep_weights`, requires_grad stays. `num_classes` of a timm model and the labels in a
    transformers config are updated. `save_pretrained` of a transformers model then writes folded weights. A bare
    nn.Linear is not changed: its head is returned.

    Args:
        model: The network; multi-label and regression models are refused.
        num_classes: C, at least 2; None keeps the number of classes.
        radius: Length of the class vectors.
        class_order: A permutation; class `class_order[i]` takes column i of P. None is the identity.
        classifier: Path of the layer (`"head.fc"`), if it is ambiguous.
        keep_weights: Take the trained layer over without changing a probability; the number of classes must stay.

    Pitfall: build the optimiser and wrap the model (DDP, compile) afterwards. Code that looks for nn.Linear (fusing,
    quantising) needs `maxsep.fold(model)`. Hooks on the old layer stay with the old layer.

    >>> import torch
    >>> model = attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), num_classes=5)
    >>> model[2], model(torch.randn(2, 4)).shape
    (MaxSeparationHead(in_features=8, num_classes=5, radius=1), torch.Size([2, 5]))
    """

    def build(linear: nn.Linear) -> nn.Module:
        if keep_weights:
            if num_classes not in (None, linear.out_features):
                raise ValueError(f"num_classes must be {linear.out_features} to keep weights, got {num_classes}")
            return MaxSeparationHead.from_linear(linear, radius, class_order=class_order)
        classes = linear.out_features if num_classes is None else num_classes
        return MaxSeparationHead.like(linear, classes, radius, class_order=class_order)

    if keep_weights:
        for path, _ in locate(model, classifier):
            if kind := activation_behind(model, path):  # its result depends on the mean logit, which P drops
                raise ValueError(f"keep_weights must be False: {kind} follows the classifier at {path!r}")
    model = replace_classifier(model, build, classifier)
    fold_on_save(model)
    return model


def replace_classifier(
    model: nn.Module, build: Callable[[nn.Linear], nn.Module], classifier: str | None = None
) -> nn.Module:
    """Replace the classifier of a model, and its auxiliary ones, by the results of `build`, in place.

    `build` is called with each nn.Linear and returns a module that maps (..., in_features) to (..., num_classes). The
    new layer gets the device, dtype and train mode of the old one. A 1 x 1 convolution is passed to `build` as an
    nn.Linear. If the model is a bare nn.Linear, the new layer is returned. `classifier` is the path of the layer, if it
    is ambiguous.

    >>> from maxsep.heads import build
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    >>> replace_classifier(model, lambda old: build("scaled", old.in_features, old.out_features, radius=0.1))[1]
    ScaledHead(in_features=8, num_classes=3, radius=0.1)
    """
    layers = locate(model, classifier)
    for module in _above(model, layers[0][0]):
        _check_problem_type(module)
    linears = [as_linear(layer) for _, layer in layers]
    # before anything is replaced: an error in build leaves the model unchanged
    heads = [build(linear).to(linear.weight).train(linear.training) for linear in linears]
    for (path, layer), linear, head in zip(layers, linears, heads, strict=True):
        new = head if layer is linear else Pointwise(head).train(layer.training)
        if layer is model:
            return new
        model.set_submodule(path, new)
        update_num_classes(model, path, linear.out_features, getattr(head, "out_features", linear.out_features))
    return model


def update_num_classes(model: nn.Module, path: str, old: int, new: int, *, keep_labels: bool = False) -> None:
    """Update `num_classes` and `num_labels` of the modules above a classifier, and the labels in model.config.

    Numbers that differed from the old number of classes are left alone. Labels get new names unless `keep_labels`.
    """
    if old == new:
        return
    for module in _above(model, path):
        for name in ("num_classes", "num_labels"):
            if vars(module).get(name) == old:
                setattr(module, name, new)
        config: Any = getattr(module, "config", None)
        if hasattr(config, "id2label") and getattr(config, "num_labels", old) in (None, old):
            labels = dict(config.id2label or {}) if keep_labels else {}
            config.num_labels = new
            config.id2label = {index: labels.get(index, f"LABEL_{index}") for index in range(new)}
            config.label2id = {name: index for index, name in config.id2label.items()}


def _above(model: nn.Module, path: str) -> list[nn.Module]:
    """Return the modules that a path leads through, without its end."""
    parents = accumulate(path.split(".")[:-1], lambda prefix, name: f"{prefix}.{name}")
    return [model, *map(model.get_submodule, parents)]


def _check_problem_type(model: nn.Module) -> None:
    """Raise for multi-label and regression models: their losses depend on a common shift of the logits."""
    config = getattr(model, "config", None)
    problem = getattr(config, "problem_type", None)
    if problem in ("multi_label_classification", "regression"):
        allowed = "'single_label_classification' (set it if the labels are class indices)"
        raise ValueError(f"config.problem_type must be {allowed}, got {problem!r}")
    if getattr(config, "id2label", None) is not None and getattr(config, "num_labels", None) == 1:
        raise ValueError("config.num_labels must be at least 2, got 1, a regression: set it to the number of classes")
