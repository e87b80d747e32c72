"""One registry of head names, for comparisons, recipes and the command line."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from maxsep.heads.base import Head

_heads: dict[str, type[Head]] = {}
HeadType = TypeVar("HeadType", bound=type[Head])


def register(name: str) -> Callable[[HeadType], HeadType]:
    """Register a head class under a name, as a decorator: `@register("mine")`.

    >>> decorate = register("mine")  # decorate(MyHead) adds it to names()
    """

    def keep(head: HeadType) -> HeadType:
        if name in _heads:
            raise ValueError(f"a head named {name!r} is already registered: {_heads[name].__name__}")
        _heads[name] = head
        return head

    return keep


def names() -> tuple[str, ...]:
    """Return the names of all registered heads in alphabetical order.

    >>> "maxsep" in names()
    True
    """
    return tuple(sorted(_heads))


def build(name: str, in_features: int, num_classes: int, radius: float = 1.0, **options: Any) -> Head:
    """Build a head by name; `options` go to its constructor.

    >>> build("maxsep", 64, 10, radius=0.1)
    MaxSeparationHead(in_features=64, num_classes=10, radius=0.1)
    """
    if name not in _heads:
        raise ValueError(f"unknown head {name!r}, known are {', '.join(names())}")
    return _heads[name](in_features, num_classes, radius, **options)


def option_defaults(name: str) -> dict[str, Any]:
    """Return the options of a head and their defaults, without sizes, radius, class_order, device and dtype.

    >>> option_defaults("etf")
    {'normalise': False, 'reserved': 0, 'rotation': None, 'bias': False}
    """
    common = {"self", "arguments", "in_features", "num_classes", "radius", "class_order", "device", "dtype"}
    defaults: dict[str, Any] = {}
    for kind in _heads[name].__mro__:
        if "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
        named = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in common}
        defaults = named | defaults  # a subclass overrides its parents
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break  # nothing is passed on to the parents
    return defaults
