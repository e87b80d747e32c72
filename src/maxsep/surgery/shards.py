"""Keep a class-parallel head in a folder: each rank writes its rows, and any number of ranks reads them back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from maxsep.heads import ClassParallelHead, MaxSeparationHead
from maxsep.surgery.persist import DESCRIPTION, _safetensors, _versions
from maxsep.surgery.whole_folder import verify_folder, write_folder

__all__ = ["load_shards", "save_shards"]

KIND = "class shards"
AnyHead = ClassParallelHead | MaxSeparationHead
Optimiser = torch.optim.Optimizer | None


def save_shards(head: ClassParallelHead, folder: str | PathLike[str], *, optimiser: Optimiser = None) -> Path:
    """Write the head to a folder that all ranks can reach, each rank its own rows; all ranks must call it.

    The folder holds one safetensors file for each rank that owns rows, `maxsep.json`, and `MANIFEST.json` with the
    SHA-256 of each. It appears as a whole or not at all, and an earlier one is replaced only by a complete one. No rank
    ever holds more than its own rows. A problem of one rank is raised on all of them.

    Args:
        head: The head; every rank passes its own.
        folder: Where to write; the same on all ranks.
        optimiser: If given, what it keeps for the head's parameters (momentum and the like) is written along.
            Settings such as the learning rate are not: they are in the program.

    >>> import tempfile
    >>> place = tempfile.mkdtemp()
    >>> distributed.init_process_group("gloo", init_method=f"file://{place}/ranks", rank=0, world_size=1)
    >>> folder = save_shards(ClassParallelHead(4, 3), place + "/head")
    >>> sorted(path.name for path in folder.iterdir())
    ['MANIFEST.json', 'maxsep.json', 'rows-0-2.safetensors']
    >>> distributed.destroy_process_group()
    >>> load_shards(folder, MaxSeparationHead(4, 3))  # needs no ranks
    """
    if not isinstance(head, ClassParallelHead):
        raise TypeError(f"save_shards writes a ClassParallelHead, got {type(head).__name__}. Use maxsep.save.")
    safetensors, started = _safetensors(), False

    def write_own(place: Path) -> None:
        rows, _ = _kept(head, optimiser)
        if head.weight.numel():
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in rows.items()}
            safetensors.save_file(tensors, place / _file_of(*head.shard.rows))

    def write(place: Path) -> None:
        nonlocal started
        started = True
        _say(place, head)
        _raise_first(_say(_problem_of(lambda: write_own(place)), head))
        (place / DESCRIPTION).write_text(json.dumps(_describe(head, optimiser), indent=1) + "\n", encoding="utf-8")

    problem = None
    if head.shard.rank == 0:
        problem = _problem_of(lambda: write_folder(Path(folder), write))
        if not started:
            _say(None, head)  # the others wait to hear where to write
    else:
        place = _say(None, head)[0]
        if place is not None:
            _say(_problem_of(lambda: write_own(place)), head)
    _raise_first(_say(problem, head))
    return Path(folder)


def load_shards(folder: str | PathLike[str], head: AnyHead, *, optimiser: Optimiser = None) -> None:
    """Read what `save_shards` wrote into a head in place, at any number of ranks, or into a MaxSeparationHead.

    A rank reads only its own rows, out of the files that hold them; those are compared with their SHA-256 first.
    Everything is checked before anything is copied. With a ClassParallelHead all ranks must call it, and a problem of
    one rank is raised on all of them.

    Args:
        folder: What `save_shards` wrote.
        head: A head of the same sizes and radius.
        optimiser: If given, what was saved of the optimiser is put into this one, for the head's parameters.

    Raises:
        FileNotFoundError: The folder or one of its files is missing.
        ValueError: A file is damaged, or the head is another one.
    """
    if not isinstance(head, AnyHead):
        raise TypeError(
            f"load_shards reads into a ClassParallelHead or a MaxSeparationHead, got {type(head).__name__}. "
            "Load into a MaxSeparationHead, and fold that for a plain layer."
        )
    found: dict[str, Any] = {}

    def check() -> None:
        found.update(_checked_description(Path(folder), head, optimiser))
        verify_folder(Path(folder), tuple(name for name, *_ in _needed(found, head)), others=True)

    problem = _problem_of(check)
    _raise_first(_say(problem, head) if isinstance(head, ClassParallelHead) else [problem])
    if optimiser is not None:
        _prepare(head, optimiser, found["optimiser"])
    _copy_rows(Path(folder), head, _kept(head, optimiser)[0], found)


def _rows_of(head: AnyHead) -> tuple[int, int]:
    return head.shard.rows if isinstance(head, ClassParallelHead) else (0, head.num_classes - 1)


def _file_of(start: int, stop: int) -> str:
    return f"rows-{start}-{stop}.safetensors"


def _kept(head: AnyHead, optimiser: Optimiser) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """Return all tensors that have a row per class, by name, and the optimiser's plain numbers by parameter."""
    rows: dict[str, Tensor] = dict(head.named_parameters())
    numbers: dict[str, dict[str, Any]] = {}
    _check_trains(head, optimiser)
    for name, parameter in head.named_parameters():
        numbers[name] = {}
        for key, value in ({} if optimiser is None else optimiser.state.get(parameter, {})).items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                rows[f"{name}.{key}"] = value
            elif isinstance(value, Tensor) and value.dim() > 0:
                raise ValueError(
                    f"the optimiser keeps {key!r} of shape {tuple(value.shape)} for {name!r} of shape "
                    f"{tuple(parameter.shape)}, which cannot be cut by class. Save without optimiser=."
                )
            elif value is not None:
                is_tensor = isinstance(value, Tensor)
                numbers[name][key] = {"tensor": is_tensor, "value": value.item() if is_tensor else value}
    return rows, numbers


def _check_trains(head: AnyHead, optimiser: Optimiser) -> None:
    if optimiser is None:
        return
    trained = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    if missing := [name for name, parameter in head.named_parameters() if id(parameter) not in trained]:
        raise ValueError(
            f"the optimiser does not train the head's {' and '.join(missing)}. Pass the one that was built with "
            "head.parameters(), or leave optimiser= out."
        )


def _describe(head: ClassParallelHead, optimiser: Optimiser) -> dict[str, Any]:
    rows, numbers = _kept(head, optimiser)
    states = {
        name: {"rows": [key.partition(".")[2] for key in rows if key.startswith(f"{name}.")], "numbers": numbers[name]}
        for name in numbers
    }
    return {
        "kind": KIND,
        **_identity(head),
        "files": [list(shard.rows) for shard in head.shard.others() if shard.rows[0] < shard.rows[1]],
        "optimiser": None if optimiser is None else states,
        **_versions(),
    }


def _identity(head: AnyHead) -> dict[str, Any]:
    return {
        "in_features": head.in_features,
        "num_classes": head.num_classes,
        "radius": head.radius,
        "bias": head.bias is not None,
    }


def _checked_description(folder: Path, head: AnyHead, optimiser: Optimiser) -> dict[str, Any]:
    verify_folder(folder, (DESCRIPTION,), others=True)
    found: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    if found.get("kind") != KIND:
        raise ValueError(f"{folder} was not written by save_shards. Read what maxsep.save wrote with maxsep.load.")
    for name, own in _identity(head).items():
        if found[name] != own:
            raise ValueError(f"{folder} holds a head with {name}={found[name]}, this one has {own}. Build it alike.")
    if head.basis != "recursive":
        raise ValueError(
            f"{folder} holds rows in the paper's basis, the head is in {head.basis!r}. Load into a MaxSeparationHead "
            f"with basis='recursive', and turn that with maxsep.change_basis(head, {head.basis!r})."
        )
    _check_trains(head, optimiser)
    if optimiser is not None and found["optimiser"] is None:
        raise ValueError(f"{folder} was saved without optimiser=, so there is no state to load. Leave it out here too.")
    return found


def _needed(found: dict[str, Any], head: AnyHead) -> Iterator[tuple[str, slice, slice]]:
    """Name the files that hold rows of this rank, which rows of the file and which of the rank they are."""
    own_start, own_stop = _rows_of(head)
    for start, stop in found["files"]:
        first, last = max(start, own_start), min(stop, own_stop)
        if first < last:
            yield _file_of(start, stop), slice(first - start, last - start), slice(first - own_start, last - own_start)


def _prepare(head: AnyHead, optimiser: torch.optim.Optimizer, states: dict[str, Any]) -> None:
    """Make room in the optimiser for the tensors that are to be read, and put the plain numbers in."""
    for name, parameter in head.named_parameters():
        state = optimiser.state[parameter]
        state.update({key: torch.zeros_like(parameter) for key in states[name]["rows"]})
        for key, kept in states[name]["numbers"].items():
            state[key] = torch.tensor(kept["value"], dtype=torch.float32) if kept["tensor"] else kept["value"]


@torch.no_grad()
def _copy_rows(folder: Path, head: AnyHead, rows: dict[str, Tensor], found: dict[str, Any]) -> None:
    import safetensors

    for file, there, here in _needed(found, head):
        with safetensors.safe_open(folder / file, framework="pt", device="cpu") as saved:
            for name, tensor in rows.items():
                tensor[here] = saved.get_slice(name)[there].to(tensor)


def _problem_of(work: Callable[[], None]) -> Exception | None:
    try:
        work()
    except Exception as error:  # whatever it is, the other ranks must hear of it
        return error
    return None


def _say(message: Any, head: ClassParallelHead) -> list[Any]:
    """Tell all ranks something and return what each of them told."""
    heard: list[Any] = [None] * head.shard.ranks
    distributed.all_gather_object(heard, message, group=head.group)
    return heard


def _raise_first(problems: Iterable[Exception | None]) -> None:
    for problem in problems:
        if problem is not None:
            raise problem
