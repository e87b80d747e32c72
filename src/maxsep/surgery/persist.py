"""Keep a model in a folder that says what it is: weights in safetensors, the rest in JSON, a checksum for each."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maxsep.surgery.convert import HeadRecord, fit_to_model, records_of
from maxsep.surgery.tree import unwrap
from maxsep.surgery.whole_folder import verify_folder, write_folder

__all__ = ["Metadata", "load", "save"]

WEIGHTS, DESCRIPTION = "model.safetensors", "maxsep.json"
ROWS_OF_A_RANK = "rows-*.safetensors"
"""Files of a class-parallel head (`shards`)."""


@dataclass(frozen=True)
class Metadata:
    """What `save` wrote beside the weights."""

    labels: tuple[str, ...] | None
    """Names of the classes, in the order of the logits."""
    radius: float | None
    """Of the main head; None for a model without one, such as a folded model."""
    preprocessing: Any
    """Whatever JSON can hold: sizes, means, a tokenizer's name."""
    threshold: float | None
    """Of a detection score, below which an input counts as unknown."""
    heads: tuple[HeadRecord, ...]
    maxsep_version: str
    torch_version: str
    extra: Any = None
    """Whatever else JSON can hold."""


def save(
    model: nn.Module,
    folder: str | PathLike[str],
    *,
    labels: Sequence[str] | None = None,
    preprocessing: Any = None,
    threshold: float | None = None,
    extra: Any = None,
) -> Path:
    """Write a model, attached or folded, to a folder: `model.safetensors`, `maxsep.json`, `MANIFEST.json`.

    The folder appears as a whole or not at all, and an earlier save is replaced only by a complete one. No pickle is
    involved: reading it runs no code. Tensors that a model shares (tied weights) are stored once.

    Args:
        model: The network; DDP and compile wrappers are taken off.
        folder: Where to write; it may hold an earlier save, but nothing else.
        labels: One name per class, in the order of the logits.
        preprocessing: Anything JSON can hold, given back by `load`.
        threshold: Of a detection score, given back by `load`.
        extra: Anything else JSON can hold, such as how to build the network; given back by `load`.

    >>> import tempfile
    >>> from maxsep import MaxSeparationHead
    >>> folder = save(MaxSeparationHead(4, 3), tempfile.mkdtemp() + "/head", labels=["cat", "dog", "owl"])
    >>> load(folder, MaxSeparationHead(4, 3)).labels
    ('cat', 'dog', 'owl')
    """
    safetensors = _safetensors()
    _check_model(model, "save(model, folder)")
    inner = unwrap(model)
    tensors, aliases = _tensors(inner)
    heads = records_of(inner)
    description = {
        "labels": _checked_labels(labels, heads),
        "radius": heads[0].radius if heads else None,
        "preprocessing": preprocessing,
        "threshold": _checked_threshold(threshold),
        "heads": [asdict(head) for head in heads],
        "aliases": aliases,
        "extra": extra,
        **_versions(),
    }
    text = _as_json(description)

    def write(place: Path) -> None:
        safetensors.save_file(tensors, place / WEIGHTS)
        (place / DESCRIPTION).write_text(text, encoding="utf-8")
        (place / WEIGHTS).chmod((place / DESCRIPTION).stat().st_mode)  # safetensors lets the owner alone read it

    write_folder(Path(folder), write)
    return Path(folder)


def load(folder: str | PathLike[str], model: nn.Module) -> Metadata:
    """Read a folder that `save` wrote into a model, in place, and return what was saved with it.

    The model may have its heads or be folded, whichever way it was saved: a saved head that meets an ordinary layer is
    folded on the way, an ordinary layer that meets a MaxSeparationHead is taken over as `from_linear` does, which keeps
    every probability. Everything is checked before anything is copied: a refused load leaves the model as it was.

    Args:
        folder: What `save` wrote.
        model: The same network, with the same number of classes; a head must have the radius that was saved.

    Raises:
        FileNotFoundError: The folder or one of its files is missing.
        ValueError: A file is damaged (its name and both checksums are told), or the model is another one.

    >>> import tempfile
    >>> from maxsep import MaxSeparationHead, fold
    >>> head, x = MaxSeparationHead(4, 3), torch.randn(2, 4)
    >>> layer = nn.Linear(4, 3)
    >>> _ = load(save(head, tempfile.mkdtemp() + "/head"), layer)
    >>> torch.allclose(layer(x), head(x), atol=1e-6)
    True
    """
    safetensors = _safetensors()
    _check_model(model, "load(folder, model)")
    place, inner = Path(folder), unwrap(model)
    if list(place.glob(ROWS_OF_A_RANK)):
        raise ValueError(
            f"{place} holds the rows of a class-parallel head, as save_shards wrote them. "
            "Read it with maxsep.surgery.load_shards(folder, head)."
        )
    verify_folder(place, (WEIGHTS, DESCRIPTION))
    if any(parameter.is_meta for parameter in inner.parameters()):
        raise ValueError("the model is on the meta device and has no memory. Call model.to_empty(device=...) first.")
    description = json.loads((place / DESCRIPTION).read_text(encoding="utf-8"))
    state: dict[str, Tensor] = safetensors.load_file(place / WEIGHTS)
    state |= {name: state[kept] for name, kept in description["aliases"].items()}
    heads = tuple(HeadRecord(**record) for record in description["heads"])
    inner.load_state_dict(fit_to_model(state, heads, inner))
    labels = description["labels"]
    return Metadata(
        labels=None if labels is None else tuple(labels),
        radius=description["radius"],
        preprocessing=description["preprocessing"],
        threshold=description["threshold"],
        heads=heads,
        maxsep_version=description["maxsep_version"],
        torch_version=description["torch_version"],
        extra=description.get("extra"),  # earlier versions wrote none
    )


def _check_model(model: Any, call: str) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"the call is {call}, with an nn.Module as model, got {type(model).__name__}.")


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError('save and load need safetensors. Install it with: pip install "maxsep[save]"') from error
    return safetensors.torch


def _tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a state dict, each once, and under which name the others are found."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[tuple[Any, ...], str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"the state-dict entry {name!r} is a {type(tensor).__name__}; a saved folder holds tensors only. "
                "Let that module's get_extra_state return a tensor."
            )
        if tensor.is_meta:
            raise ValueError(f"{name!r} is on the meta device and has no values. Load or initialise the model first.")
        key = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            kept[name] = tensor.detach().cpu().contiguous()
    users = Counter(_memory(tensor) for tensor in kept.values())
    # different views of one memory are stored apart
    return {name: tensor.clone() if users[_memory(tensor)] > 1 else tensor for name, tensor in kept.items()}, aliases


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _checked_labels(labels: Sequence[str] | None, heads: tuple[HeadRecord, ...]) -> list[str] | None:
    if labels is None:
        return None
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise TypeError(f"labels must be a list of strings, one per class, got {labels!r}. Pass their names.")
    if heads and len(labels) != heads[0].num_classes:
        raise ValueError(
            f"got {len(labels)} labels for {heads[0].num_classes} classes. Pass one per class, in the logits' order."
        )
    return list(labels)


def _checked_threshold(threshold: float | None) -> float | None:
    if threshold is None:
        return None
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise TypeError(f"threshold must be a number, got {type(threshold).__name__}. Pass a float, or leave it out.")
    if not math.isfinite(threshold):
        raise ValueError(f"threshold must be finite, got {threshold}. maxsep.detect.threshold_at_tpr gives one.")
    return float(threshold)


def _as_json(description: dict[str, Any]) -> str:
    try:
        return json.dumps(description, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"preprocessing and extra must be made of what JSON can hold: {error}. "
            "Pass numbers, strings, lists and dicts."
        ) from error


def _versions() -> dict[str, str]:
    from maxsep import __version__

    return {"maxsep_version": __version__, "torch_version": torch.__version__}
