"""A reader of pickled batches that runs nothing: plain containers, numbers, text, and uint8 arrays.

A pickle is a program for a small stack machine. This is that machine with the instructions that build data and no
others: it imports nothing and calls nothing on a file's behalf. The few numpy names that an array needs are known by
name. Its work and its memory are bounded by the size of the file: keys are text, so that no hash walks through nested
containers (a few hundred bytes can nest them a billion times over), and no message prints more than a line of them.
"""

from __future__ import annotations

import io
import math
import pickletools
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PUSHED = """
NONE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT
UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
"""
_MAX_DIMENSIONS = 8

_shorten = reprlib.Repr()
_shorten.maxlevel, _shorten.maxstring, _shorten.maxother, _shorten.maxlong = 2, 80, 80, 24


class RefusedError(ValueError):
    """Raised for a pickle that is damaged or asks for more than data."""


def shown(value: Any) -> str:
    """Write what came out of a file in at most a line, however large or nested it is.

    >>> shown([1, [2, [3, [4]]]])
    '[1, [2, [...]]]'
    """
    return _shorten.repr(value)


def read_data(content: bytes) -> Any:
    """Decode a pickle of plain data and uint8 arrays, from Python 2 or 3, protocols 0 to 4.

    Text that Python 2 wrote comes back as bytes. Anything else (a class, a function call, a key that is no text, a
    damaged or lengthened file) is a `RefusedError`; nothing of it is executed.

    >>> import pickle
    >>> read_data(pickle.dumps({"labels": [1, 2]}, protocol=2))
    {'labels': [1, 2]}
    >>> read_data(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    maxsep.lab.data.unpickle.RefusedError: it asks for 'builtins.print', which image data does not need
    """
    try:
        return _settle(_run(content))
    except RefusedError:
        raise
    except Exception as error:  # damage surfaces as any of a dozen types
        raise RefusedError(f"it is damaged ({type(error).__name__}: {shown(str(error))[1:-1]})") from error


def _run(content: bytes) -> Any:
    stream, machine = io.BytesIO(content), _Machine(len(content))
    for opcode, argument, _ in pickletools.genops(stream):
        step = _STEPS.get(opcode.name)
        if step is None:
            raise RefusedError(f"it holds the instruction {opcode.name}, which image data does not need")
        step(machine, argument)
    if extra := len(content) - stream.tell():
        raise RefusedError(f"{extra} bytes follow its end")
    return machine.pop()


class _Machine:
    """The stack, the marks in it, and the memo of objects that are used again."""

    def __init__(self, budget: int) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.budget = budget

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise RefusedError("it is damaged (it takes more from its stack than it has put there)")
        return self.stack.pop()

    def pop_items(self) -> list[Any]:
        """Take everything above the last mark, and the mark."""
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def put(self, key: Any) -> None:
        self.memo[len(self.memo) if key is None else int(key)] = self.stack[-1]

    def get(self, key: Any) -> None:
        self.push(self.memo[int(key)])

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise RefusedError(f"it appends to {shown(self.stack[-1])}, which is no list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise RefusedError(f"it sets items of {shown(target)}, which is no dictionary, or half an item")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, bytes):
                raise RefusedError(f"it holds the key {shown(key)}; the keys of image data are text")
            target[key] = value

    def name(self, module: Any, name: Any) -> None:
        """Push a name that an array needs."""
        full = f"{module}.{name}" if type(module) is str and type(name) is str else ""
        if full not in _CALLS and full != "numpy.ndarray":
            raise RefusedError(f"it asks for {shown(full)}, which image data does not need")
        self.push(_Name(full))

    def reduce(self, _: Any) -> None:
        arguments, function = self.pop(), self.pop()
        call = _CALLS.get(function.name) if isinstance(function, _Name) else None
        if call is None or type(arguments) is not tuple:
            raise RefusedError("it calls something that image data does not need")
        self.push(call(self, *arguments))

    def build(self, _: Any) -> None:
        state, target = self.pop(), self.stack[-1]
        if isinstance(target, _Array):
            target.set(state)
        elif not isinstance(target, _Dtype):  # byte order and alignment: one byte has neither
            raise RefusedError("it tries to change a function or a value")


class _Name:
    """One of the names that are known; nothing is behind it."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Dtype:
    """Stand in for numpy.dtype: unsigned bytes or nothing."""


class _Array:
    """Stand in for numpy.ndarray until the file has been read."""

    def __init__(self) -> None:
        self._array: NDArray[np.uint8] | None = None

    def set(self, state: Any) -> None:
        import numpy as np

        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or type(raw) is not bytes:
            raise RefusedError("it holds an array that is not of unsigned bytes")
        # few and small numbers first: the product of many large ones would take for ever
        plain = type(shape) is tuple and len(shape) <= _MAX_DIMENSIONS
        if not plain or not all(type(n) is int and 0 <= n < 2**31 for n in shape) or math.prod(shape) != len(raw):
            raise RefusedError(f"it holds an array of shape {shown(shape)} with {len(raw)} bytes")
        self._array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran is True else "C")

    def value(self) -> NDArray[np.uint8]:
        if self._array is None:
            raise RefusedError("it holds an array without content")
        return self._array


def _make_dtype(machine: _Machine, kind: Any, *_: Any) -> _Dtype:
    if type(kind) not in (str, bytes) or kind not in ("u1", b"u1"):
        raise RefusedError(f"it holds an array of type {shown(kind)}; images are unsigned bytes ('u1')")
    return _Dtype()


def _encode(machine: _Machine, text: Any, codec: Any) -> bytes:
    """Turn text to bytes: how Python 3 writes bytes in protocol 2. All of a file's text fits in the file."""
    if type(text) is not str or type(codec) not in (str, bytes) or codec not in ("latin1", b"latin1"):
        raise RefusedError("it encodes something other than latin1 text")
    machine.budget -= len(text)
    if machine.budget < 0:
        raise RefusedError("it unfolds to more than its own size")
    return text.encode("latin1")


def _settle(value: Any) -> Any:
    """Put the arrays in the place of their stand-ins, in a dictionary of batches."""
    if type(value) is dict:
        return {key: _settled(item) for key, item in value.items()}
    return _settled(value)


def _settled(item: Any) -> Any:
    if isinstance(item, _Name | _Dtype):
        raise RefusedError("it holds a name where a value belongs")
    return item.value() if isinstance(item, _Array) else item


_CALLS: dict[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": lambda machine, *_: _Array(),
    "numpy._core.multiarray._reconstruct": lambda machine, *_: _Array(),
    "numpy.dtype": _make_dtype,
    "_codecs.encode": _encode,
    "__builtin__.bytes": lambda machine: b"",  # how protocol 2 writes empty bytes
}

_Step = Callable[[_Machine, Any], None]


def _tuple_of(count: int) -> _Step:
    return lambda machine, _: machine.push(tuple([machine.pop() for _ in range(count)][::-1]))


def _new_dict(machine: _Machine, _: Any) -> None:
    items = machine.pop_items()
    machine.push({})
    machine.set_items(items)


_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(_PUSHED.split(), _Machine.push),
    # text of Python 2, which pickletools has decoded to str
    **dict.fromkeys(
        ("STRING", "BINSTRING", "SHORT_BINSTRING"), lambda machine, text: machine.push(text.encode("latin1"))
    ),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": _Machine.mark,
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    **{name: _tuple_of(count) for count, name in enumerate(("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"))},
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_items())),
    "LIST": lambda machine, _: machine.push(machine.pop_items()),
    "DICT": _new_dict,
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.pop_items()),
    "SETITEM": lambda machine, _: machine.set_items([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_items()),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.get),
    "GLOBAL": lambda machine, names: machine.name(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*[machine.pop(), machine.pop()][::-1]),
    "REDUCE": _Machine.reduce,
    "BUILD": _Machine.build,
}
