"""One registry of head names, for comparisons, recipes and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from maxsep.heads.base import Head

__all__ = ["build", "name_of", "names", "option_defaults", "register"]

_heads: dict[str, type[Head]] = {}
HeadType = TypeVar("HeadType", bound=type[Head])


def register(name: str) -> Callable[[HeadType], HeadType]:
    """Give a head class a name; yours too, before a comparison names it.

    >>> @register("example")
    ... class Example(Head):
    ...     '''A head of your own.'''
    >>> "example" in names(), _heads.pop("example").__name__
    (True, 'Example')
    """

    def keep(head: HeadType) -> HeadType:
        if name in _heads:
            raise ValueError(f"a head named {name!r} is already registered: {_heads[name].__name__}. Choose another.")
        _heads[name] = head
        return head

    return keep


def names() -> tuple[str, ...]:
    """List the registered heads.

    >>> "maxsep" in names()
    True
    """
    return tuple(_heads)


def name_of(head: Head) -> str | None:
    """Find the name that a head's class is registered under, if it is.

    >>> name_of(build("maxsep", 4, 3))
    'maxsep'
    """
    return next((name for name, kind in _heads.items() if kind is type(head)), None)


def build(name: str, in_features: int, num_classes: int, radius: float = 1.0, **options: Any) -> Head:
    """Build a head by name; `options` go to its constructor.

    >>> build("maxsep", 64, 10, radius=0.1)
    MaxSeparationHead(in_features=64, num_classes=10, radius=0.1)
    """
    if name not in _heads:
        raise ValueError(
            f"unknown head {name!r}. Known: {', '.join(names())}. Add your own with maxsep.heads.register."
        )
    if "basis" in options and not _takes_basis(_heads[name]):
        raise TypeError(
            f"the head {name!r} has no basis to choose, got basis={options['basis']!r}. "
            "Leave basis out, or take the head 'maxsep'."
        )
    return _heads[name](in_features, num_classes, radius, **options)


def option_defaults(name: str) -> dict[str, Any]:
    """Give what a head takes beside its sizes, its radius, and where and in which precision it is made: the defaults.

    >>> option_defaults("etf")
    {'normalise': False, 'reserved': 0, 'rotation': None, 'bias': False}
    """
    given = {"self", "in_features", "num_classes", "radius", "device", "dtype"}
    found: dict[str, Any] = {}
    for kind in _heads[name].__mro__:
        if "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
        own = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in given}
        found = own | found  # what a class says goes before what is above it
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break  # nothing is passed on to the classes above
    return found


def _takes_basis(head: type[Head]) -> bool:
    """Say whether a head takes basis=, by name or through **options that a head above it does."""
    parameters = inspect.signature(head).parameters
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    above = (parent for parent in head.__bases__ if issubclass(parent, Head))
    return "basis" in parameters or (passes_on and any(_takes_basis(parent) for parent in above))
