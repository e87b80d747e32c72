"""A reader of pickled batches that runs nothing: plain containers, numbers, text, and uint8 arrays.

A pickle is a program. Two gates keep a hostile one from running: only opcodes that build data are let through, and
the few numpy names that an array needs are answered by stand-ins of our own, so nothing is ever imported or called
on a file's behalf. What the stand-ins may allocate is bounded by the size of the file.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CONTAINERS = """
MARK STOP PROTO FRAME EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 TUPLE3
APPEND APPENDS SETITEM SETITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
"""
_NUMBERS_AND_TEXT = """
NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING
UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8
"""
_ARRAYS = "GLOBAL STACK_GLOBAL REDUCE BUILD"
_DATA_OPCODES = frozenset(f"{_CONTAINERS} {_NUMBERS_AND_TEXT} {_ARRAYS}".split())


class RefusedError(ValueError):
    """Raised for a pickle that is damaged or asks for more than data."""


def read_data(content: bytes) -> Any:
    """Decode a pickle of plain data and uint8 arrays, from Python 2 or 3, protocols 0 to 4.

    Text that Python 2 wrote comes back as bytes. Anything else (a class, a function call, a damaged or lengthened
    file) is a `RefusedError`; nothing of it is executed.

    >>> read_data(pickle.dumps({"labels": [1, 2]}, protocol=2))
    {'labels': [1, 2]}
    >>> read_data(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    maxsep.lab.data.unpickle.RefusedError: it asks for 'builtins.print', which image data does not need
    """
    try:
        _check_opcodes(content)
        return _settle(_Reader(content).load())
    except RefusedError:
        raise
    except Exception as error:  # damage surfaces as any of a dozen types from inside pickle
        raise RefusedError(f"it is damaged ({type(error).__name__}: {error})") from error


def _check_opcodes(content: bytes) -> None:
    stream = io.BytesIO(content)
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if opcode.name not in _DATA_OPCODES:
            raise RefusedError(f"it holds the instruction {opcode.name}, which image data does not need")
        # The memo is an array in C: an index far beyond the objects made so far would only serve to fill memory.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > number + 1000:
            raise RefusedError(f"it uses memo {argument} after {number} instructions")
    if extra := len(content) - stream.tell():
        raise RefusedError(f"{extra} bytes follow its end")


class _Reader(pickle.Unpickler):
    """Unpickle with stand-ins for the numpy names that an array needs."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._budget = len(content)

    def find_class(self, module: str, name: str) -> Any:
        """Answer a name with a stand-in, or refuse it."""
        stand_in = {
            ("numpy.core.multiarray", "_reconstruct"): _Call(lambda *_: _Array()),
            ("numpy._core.multiarray", "_reconstruct"): _Call(lambda *_: _Array()),
            ("numpy", "ndarray"): "ndarray",
            ("numpy", "dtype"): _Call(lambda kind, *_: _Dtype(kind)),
            ("_codecs", "encode"): _Call(self._encode),
            ("__builtin__", "bytes"): _Call(lambda: b""),  # how protocol 2 writes empty bytes
        }.get((module, name))
        if stand_in is None:
            raise RefusedError(f"it asks for {f'{module}.{name}'!r}, which image data does not need")
        return stand_in

    def _encode(self, text: str, codec: str) -> bytes:
        """Turn text to bytes: how Python 3 writes bytes in protocol 2. All of a file's text fits in the file."""
        if not isinstance(text, str) or codec not in ("latin1", b"latin1"):
            raise RefusedError("it encodes something other than latin1 text")
        self._budget -= len(text)
        if self._budget < 0:
            raise RefusedError("it unfolds to more than its own size")
        return text.encode("latin1")


class _Call:
    """A callable without a dictionary, so that BUILD has nothing to write into."""

    __slots__ = ("_function",)

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise RefusedError("it tries to change a function")


class _Dtype:
    """Stand in for numpy.dtype: unsigned bytes or nothing."""

    __slots__ = ()

    def __init__(self, kind: Any) -> None:
        if kind not in ("u1", b"u1"):
            raise RefusedError(f"it holds an array of type {kind!r}; images are unsigned bytes ('u1')")

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and alignment: one byte has neither."""


class _Array:
    """Stand in for numpy.ndarray until the file has been read."""

    __slots__ = ("_array",)

    def __init__(self) -> None:
        self._array: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        import numpy as np

        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise RefusedError("it holds an array that is not of unsigned bytes")
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) != len(raw):
            raise RefusedError(f"it holds an array of shape {shape} with {len(raw)} bytes")
        self._array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")

    def value(self) -> NDArray[np.uint8]:
        if self._array is None:
            raise RefusedError("it holds an array without content")
        return self._array


def _settle(value: Any) -> Any:
    """Put the arrays in the place of their stand-ins, in a dictionary of batches."""
    if isinstance(value, dict):
        return {key: item.value() if isinstance(item, _Array) else item for key, item in value.items()}
    return value.value() if isinstance(value, _Array) else value
