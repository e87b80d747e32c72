"""Pretrained weights of a backbone, from a file or a library; and the images that a pretrained network expects."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from maxsep.files import parse_file, sha256_of
from maxsep.lab.networks.external import LIBRARIES, create, import_library
from maxsep.lab.networks.small import Shape
from maxsep.packages import load_package

Tensors = dict[str, Tensor]
OFFLINE = "Offline, pass a file of weights with --weights FILE (safetensors or a state dict)."
TIMEOUT = 5.0
"""Seconds in which the hub of timm's weights has to answer."""
_KINDS = ("weight", "bias", "running_mean", "running_var")
_COUNTER = "num_batches_tracked"
_CONTAINERS = ("state_dict", "model", "model_state_dict")
"""Keys under which training scripts save a state dict."""
_PREFIXES = ("", "backbone.", "module.", "model.", "module.backbone.")
"""What wrappers put before the names of a backbone; `backbone.` stands in the runs of this package."""


class Inputs(NamedTuple):
    """The side of the images, and means and standard deviations of the channels on the scale of 0 to 1."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


def split_name(name: str) -> tuple[str, str]:
    """Split `timm/NAME?pretrained=1` or `torchvision/NAME?weights=DEFAULT` into network and `RunSpec.weights`."""
    network, mark, query = name.partition("?")
    match = re.fullmatch(r"pretrained=(?:1|true)|weights=(\w+)", query, re.IGNORECASE)
    if mark and not (match and network.startswith("torchvision/" if match[1] else "timm/")):
        raise ValueError(
            f"weights are named as timm/NAME?pretrained=1 or torchvision/NAME?weights=DEFAULT, got {name!r}."
        )
    return network, (match[1] or "pretrained") if match else ""


def expected_inputs(network: str, weights: str = "") -> Inputs | None:
    """Return the images that a network of timm or torchvision was pretrained on; None if that is not known.

    For a file of weights it is what the library says about its own weights of this network.
    """
    library, _, model = network.partition("/")
    if library == "timm":
        known = import_library("timm").get_pretrained_cfg(model)
        return None if known is None else Inputs(known.input_size[-1], tuple(known.mean), tuple(known.std))
    if library != "torchvision":
        return None
    entries = _torchvision_weights(model)
    if weights in entries.__members__ or "DEFAULT" in entries.__members__:
        transforms = entries[weights if weights in entries.__members__ else "DEFAULT"].transforms()
        return Inputs(transforms.crop_size[0], tuple(transforms.mean), tuple(transforms.std))
    return None


def load_weights(network: nn.Module, name: str, weights: str, path: Path | None, shape: Shape, **how: Any) -> None:
    """Load pretrained weights into a network built as `name`, all but its `head`; `weights` is that of `RunSpec`.

    `path` is the file whose SHA-256 is `weights`, `shape` that of the images which the backbone sees; `how` are
    `options` of the constructor and `names`, the key map.
    """
    state = {key: value for key, value in network.state_dict().items() if not key.startswith("head.")}
    if is_file(weights):
        if path is None or sha256_of(path) != weights:
            reason = "none was given" if path is None else f"{path} is another file"
            raise ValueError(
                f"the run starts from weights with SHA-256 {weights[:10]}...; {reason}. Pass --weights FILE."
            )
        tensors, keeps_order = read_weights(path)
        source = str(path)
    else:
        tensors, keeps_order = _library_weights(name, weights, shape, how["options"]), False
        source = f"{name}?{weights}"
    matched = match_tensors(_rename(tensors, how["names"]), state, keeps_order=keeps_order, source=source)
    network.load_state_dict(matched, strict=False)


def is_file(weights: str) -> bool:
    """Whether `RunSpec.weights` is the SHA-256 of a file."""
    return re.fullmatch(r"[0-9a-f]{64}", weights) is not None


def read_weights(path: Path) -> tuple[Tensors, bool]:
    """Read a file of tensors without executing code: the tensors by name, and whether they are in the model's order.

    A safetensors file sorts its tensors by name. Any other file is read by `torch.load(weights_only=True)`.
    """
    if path.suffix == ".safetensors":
        return parse_file(path, load_file), False
    try:
        content = parse_file(path, lambda file: torch.load(file, map_location="cpu", weights_only=True))
    except ValueError as error:  # torch's own words recommend to run the code of the file
        raise ValueError(f"{path} is neither a state dict nor safetensors, or it is damaged.") from error
    while isinstance(content, dict) and (key := next((k for k in _CONTAINERS if k in content), None)):
        content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(f"{path} holds no state dict: names with tensors.")
    return dict(content), True


def match_tensors(tensors: Tensors, state: Tensors, *, keeps_order: bool = True, source: str = "the file") -> Tensors:
    """Give tensors of a file the names of a network's `state`; the classifier of the file is left out.

    Tensors are matched by name if every name of the network is there, also behind a prefix such as `module.`. Else all
    of them are taken in order, if every shape and kind (weight, bias, running mean and variance) agrees; up to two more
    at the end are the classifier's. Counters of batches are ignored.
    """
    values = {key: value for key, value in tensors.items() if not key.endswith(_COUNTER)}
    wanted = {key: value for key, value in state.items() if not key.endswith(_COUNTER)}
    bare = {key.removeprefix("backbone."): key for key in wanted}
    for prefix in _PREFIXES:
        named = {key: values[prefix + name] for name, key in bare.items() if prefix + name in values}
        if len(named) == len(wanted):
            if odd := next((key for key in wanted if named[key].shape != wanted[key].shape), None):
                shapes = f"{tuple(named[odd].shape)} instead of {tuple(wanted[odd].shape)}"
                raise ValueError(f"{source} does not fit the network: {odd} is {shapes} (another --image-size?).")
            return named
    if not keeps_order or not 0 <= len(values) - len(wanted) <= 2:
        missing = next(name for name in bare if name not in values)
        raise ValueError(
            f"{source} does not fit the network: it has {len(values)} tensors and no {missing}; the network has "
            f"{len(wanted)} without its classifier. A key map (--set weights.OLD=NEW) renames tensors."
        )
    pairs = list(zip(values.items(), wanted.items(), strict=False))
    for (theirs, value), (ours, expected) in pairs:
        kinds = {theirs.rpartition(".")[2], ours.rpartition(".")[2]}
        if value.shape != expected.shape or (len(kinds) == 2 and kinds <= {*_KINDS}):
            raise ValueError(
                f"{source} does not fit the network: in order, {theirs} {tuple(value.shape)} would be {ours} "
                f"{tuple(expected.shape)}. A key map (--set weights.OLD=NEW) renames tensors."
            )
    return {ours: value for (_, value), (ours, _) in pairs}


def _rename(tensors: Tensors, names: Mapping[str, str]) -> Tensors:
    for old, new in names.items():
        tensors = {(f"{new}{k.removeprefix(old)}" if k.startswith(old) else k): v for k, v in tensors.items()}
    return tensors


def _library_weights(name: str, weights: str, shape: Shape, options: Mapping[str, Any]) -> Tensors:
    """Let timm or torchvision build the network with its own weights, from its cache or the internet."""
    library, _, model = name.partition("/")
    if library not in LIBRARIES:
        raise ValueError(f"{name} has no pretrained weights: weights must be those of timm/NAME or torchvision/NAME.")
    wanted: dict[str, Any] = {"pretrained": True}
    if library == "torchvision":
        entries = _torchvision_weights(model).__members__
        if weights not in entries:
            raise ValueError(f"torchvision/{model} has no weights {weights!r}. Known: {', '.join(entries)}.")
        wanted = {"weights": weights}
    try:
        if library == "timm":
            wanted |= _from_cache(model)
        built = create(name, shape, {**options, **wanted})
    except ImportError:
        raise
    except Exception as error:  # each library, and each way to download, raises its own
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise ValueError(f"no pretrained weights of {name} could be loaded ({reason}). {OFFLINE}") from error
    tensors: Tensors = built.state_dict()
    return tensors


def _from_cache(model: str) -> dict[str, Any]:
    """Find the file of timm's weights in the local cache of the hub. Without it, an OSError unless the hub answers.

    The hub's package would ask first, and retry for a minute without internet.
    """
    config, hub = import_library("timm").get_pretrained_cfg(model), load_package("huggingface_hub", "vision")
    if config is None or not config.hf_hub_id or config.custom_load:
        return {}
    repository, _, revision = config.hf_hub_id.partition("@")
    names = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    paths = [hub.try_to_load_from_cache(repository, name, revision=revision or None) for name in names]
    if path := next((path for path in paths if isinstance(path, str)), None):
        return {"pretrained_cfg_overlay": {"file": path}}
    with suppress(urllib.error.HTTPError):  # an answer, too
        urllib.request.urlopen(hub.constants.ENDPOINT, timeout=TIMEOUT).close()
    return {}


def _torchvision_weights(model: str) -> Any:
    models = import_library("torchvision.models")
    if model not in models.list_models(module=models):
        raise ValueError(f"torchvision has no model named {model!r}; see torchvision.models.list_models().")
    return models.get_model_weights(model)
