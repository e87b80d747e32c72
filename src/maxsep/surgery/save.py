"""Save a model as weights in safetensors and a description in JSON, with a checksum for each, and load it."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.checks import check_number
from maxsep.files import parse_file, read_json, verify_folder, write_folder
from maxsep.heads import Head, MaxSeparation
from maxsep.heads.maxsep import describe_order, equal_orders
from maxsep.packages import load_package
from maxsep.surgery.locate import find_heads, unwrap

WEIGHTS, DESCRIPTION = "model.safetensors", "maxsep.json"
SETTINGS = ("num_classes", "radius", "normalise", "reserved", "rotation")  # what a head's tensors do not tell


@dataclass(frozen=True)
class Metadata:
    """What was saved with the weights, see `save`; `radius` is the main head's, None for a folded model."""

    labels: tuple[str, ...] | None
    radius: float | None
    preprocessing: Any
    threshold: float | None
    extra: Any
    maxsep_version: str
    torch_version: str


def save(
    model: nn.Module,
    folder: str | PathLike[str],
    *,
    labels: Sequence[str] | None = None,
    preprocessing: Any = None,
    threshold: float | None = None,
    extra: Any = None,
) -> Path:
    """Write a model to a folder: `model.safetensors`, `maxsep.json` and `MANIFEST.json` with their SHA-256.

    The folder appears as a whole or not at all, and an earlier save is replaced only by a complete one. No pickle is
    involved: loading runs no code. Tied weights are stored once.

    Args:
        model: The network, with heads or folded; wrappers are removed as by `fold`.
        folder: Where to write; it may hold an earlier save, but nothing else. What the earlier one had and this call
            does not pass, such as labels, is gone, with a warning.
        labels: One name per class, in the order of the logits.
        preprocessing: Anything JSON can hold: sizes, means, the name of a tokenizer.
        threshold: Detection score below which an input counts as unknown.
        extra: Anything else JSON can hold, such as how to build the network.

    >>> import tempfile
    >>> from maxsep import MaxSeparationHead
    >>> folder = save(MaxSeparationHead(4, 3), tempfile.mkdtemp() + "/head", labels=["cat", "dog", "owl"])
    >>> load(folder, MaxSeparationHead(4, 3)).labels
    ('cat', 'dog', 'owl')
    """
    from maxsep import __version__

    safetensors = load_package("safetensors.torch", "save")
    inner = unwrap(model)
    for name, tensor in _tensors(inner).items():
        if tensor.is_meta:
            raise ValueError(f"{name!r} must have values to be saved, got a tensor on the meta device")
    heads = _describe_heads(inner)
    if threshold is not None:
        threshold = check_number("threshold", threshold, "a finite number")
    description = {
        "labels": _checked_labels(labels, heads),
        "radius": next((head["radius"] for head in heads.values()), None),
        "preprocessing": preprocessing,
        "threshold": threshold,
        "extra": extra,
        "heads": heads,
        "maxsep_version": __version__,
        "torch_version": torch.__version__,
    }
    text = _to_json(description)
    _warn_of_loss(Path(folder) / DESCRIPTION, description)

    def write(temporary: Path) -> None:
        safetensors.save_model(inner, str(temporary / WEIGHTS))
        (temporary / DESCRIPTION).write_text(text, encoding="utf-8")
        # safetensors makes its file readable by its owner alone
        (temporary / WEIGHTS).chmod((temporary / DESCRIPTION).stat().st_mode)

    write_folder(Path(folder), write)
    return Path(folder)


def _warn_of_loss(path: Path, description: dict[str, Any]) -> None:
    """Warn if an earlier save has labels, preprocessing, a threshold or extra data, and its replacement none."""
    try:
        earlier = read_json(path)
    except (OSError, ValueError):
        return
    names = ("labels", "preprocessing", "threshold", "extra")
    if lost := [name for name in names if earlier.get(name) is not None and description[name] is None]:
        warnings.warn(f"{path.parent} is replaced without its {', '.join(lost)}.", stacklevel=3)


def _to_json(description: dict[str, Any]) -> str:
    try:
        return json.dumps(description, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise TypeError(f"preprocessing and extra must be made of what JSON can hold: {error}") from error


def load(folder: str | PathLike[str], model: nn.Module) -> Metadata:
    """Load a folder written by `save` into a model, in place, and return what was saved with it.

    The model must have the form in which it was saved: with heads of the same kind, size and radius, or folded.
    Everything is checked before anything is copied, so that a refused load leaves the model unchanged. A missing file
    is a FileNotFoundError; a damaged one, or a model that does not fit, a ValueError.

    >>> import tempfile
    >>> from maxsep import MaxSeparationHead
    >>> head, other, x = MaxSeparationHead(4, 3), MaxSeparationHead(4, 3), torch.randn(2, 4)
    >>> _ = load(save(head, tempfile.mkdtemp() + "/head"), other)
    >>> torch.equal(other(x), head(x))
    True
    """
    safetensors = load_package("safetensors.torch", "save")
    inner, path = unwrap(model), Path(folder)
    verify_folder(path, (WEIGHTS, DESCRIPTION))
    description = read_json(path / DESCRIPTION)
    _check_heads(description.pop("heads"), _describe_heads(inner))
    state = parse_file(path / WEIGHTS, safetensors.load_file)
    _check_tensors(state, _tensors(inner))
    inner.load_state_dict(state, strict=False)  # tied tensors are stored once
    labels = description.pop("labels")
    return Metadata(labels=None if labels is None else tuple(labels), **description)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"the state dict must hold tensors only, got {type(value).__name__} in {name!r}")
    return state


def _describe_heads(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what the tensors do not tell, by path; the main head comes first."""
    matrices = [(path, module) for path, module in model.named_modules() if isinstance(module, MaxSeparation)]
    heads: list[tuple[str, Head | MaxSeparation]] = [*find_heads(model), *matrices]
    return {
        path: {"kind": type(head).__name__} | {name: getattr(head, name) for name in SETTINGS if hasattr(head, name)}
        for path, head in heads
    }


def _check_heads(saved: dict[str, dict[str, Any]], current: dict[str, dict[str, Any]]) -> None:
    kinds, own_kinds = ({path: head["kind"] for path, head in heads.items()} for heads in (saved, current))
    if kinds != own_kinds:
        raise ValueError(f"the saved model has {_list(kinds)}, this one has {_list(own_kinds)}")
    for path, head in saved.items():
        for name in (*head, *current[path]):
            was, now = head.get(name), current[path].get(name)
            if was != now:
                raise ValueError(f"the head at {path!r} must have {name} {was}, got {now}")


def _list(kinds: dict[str, str]) -> str:
    return ", ".join(f"{kind} at {path!r}" for path, kind in kinds.items()) or "no head"


def _check_tensors(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare names, shapes and class orders of a saved model with those of the model to load it into."""
    stored = {_memory(expected[name]) for name in state if name in expected}
    for name, tensor in expected.items():
        if tensor.is_meta:
            raise ValueError(f"{name!r} is on the meta device: call model.to_empty(device=...) first")
        if name not in state and not (tensor.numel() and _memory(tensor) in stored):
            raise ValueError(f"{name!r} of this model is missing in the saved one")
    first: dict[tuple[int, torch.Size], Tensor] = {}
    for name, tensor in state.items():
        is_order = name.split(".")[-1] == "class_order"
        if is_order and not equal_orders(tensor, expected.get(name)):
            order = describe_order(tensor.tolist())
            raise ValueError(f"this model has not the saved one's {name!r}: attach with class_order={order}")
        if name not in expected:
            raise ValueError(f"{name!r} of the saved model is not in this one")
        if tensor.shape != expected[name].shape:
            raise ValueError(f"{name!r} must have shape {tuple(tensor.shape)}, got {tuple(expected[name].shape)}")
        if not torch.equal(first.setdefault((_memory(expected[name]), tensor.shape), tensor), tensor):
            raise ValueError(f"{name!r} shares memory with another tensor of this model, but not in the saved one")


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _checked_labels(labels: Sequence[str] | None, heads: dict[str, dict[str, Any]]) -> list[str] | None:
    if labels is None:
        return None
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise TypeError(f"labels must be a list of strings, one per class, got {labels!r}")
    num_classes = next((head["num_classes"] for head in heads.values()), len(labels))
    if len(labels) != num_classes:
        raise ValueError(f"labels must be {num_classes} names, one per class, got {len(labels)}")
    return list(labels)
