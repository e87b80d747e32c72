"""A hostile or damaged pickle is refused and never executed."""

import os
import pickle
import random
import struct
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.lab.data.unpickle import RefusedError, read_data, shown


class Evil:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def hostile(marker):
    """More than twenty pickles that would run something, reach an object, or fill the memory."""
    command = f"touch {marker}"
    array = np.zeros(4, np.uint8)
    yield from (pickle.dumps(Evil(os.system, command), protocol=p) for p in range(6))
    yield from (
        pickle.dumps({"data": array, "x": Evil(eval, f"open({str(marker)!r}, 'w')")}, protocol=p) for p in (2, 4)
    )
    yield pickle.dumps(Evil(exec, f"open({str(marker)!r}, 'w')"), protocol=2)
    yield pickle.dumps(Evil(open, str(marker), "w"), protocol=2)
    yield pickle.dumps(Evil(getattr, [], "append"), protocol=2)
    yield pickle.dumps(Evil(__import__, "os"), protocol=2)
    yield f"cos\nsystem\n(S'{command}'\ntR.".encode()
    yield f"(S'{command}'\nios\nsystem\n.".encode()  # INST
    yield f"(cos\nsystem\nS'{command}'\no.".encode()  # OBJ
    yield b"\x80\x02cnumpy\nndarray\n)\x81."  # NEWOBJ
    yield b"\x80\x02\x82\x01."  # EXT1
    yield b"P1\n."  # PERSID
    yield b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93."  # STACK_GLOBAL
    yield pickle.dumps(np.array([Evil(os.system, command)], dtype=object), protocol=2)
    yield pickle.dumps({"data": np.zeros(3, np.float64)}, protocol=2)
    yield b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}U\x01ac_codecs\nencode\nsb."  # BUILD on a function
    text = b"X" + struct.pack("<I", 1000) + b"a" * 1000 + b"q\x00"
    encode = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R0"
    yield b"\x80\x02]" + text + encode * 50 + b"."  # uses POP
    again = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    yield b"\x80\x02(" + text + again * 50 + b"t."  # unfolds to fifty times its text
    yield b"\x80\x02cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R."


def test_no_hostile_pickle_runs(tmp_path):
    marker = tmp_path / "executed"
    corpus = list(hostile(marker))
    assert len(corpus) >= 20
    for content in corpus:
        with pytest.raises(RefusedError):
            read_data(content)
        assert not marker.exists(), content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(os.getcwd, protocol=2), "asks for 'posix.getcwd'"),
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02}.more", "4 bytes follow its end"),
        (b"\x80\x02}", "damaged"),
        (b"", "damaged"),
        (b"<html>sorry</html>", "damaged"),
        (pickle.dumps({"data": np.zeros(3)}, protocol=2), "array of type 'f8'"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R.", "array without content"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x04\x00\x00\x00utf8\x86R.", "other than latin1"),
        (b"\x80\x02cnumpy\ndtype\n}b.", "tries to change a function"),
        (b"\x80\x02]]b.", "tries to change a function or a value"),
        (b"\x80\x02]N)R.", "calls something that image data does not need"),
        (b"\x80\x02}K\x01a.", r"appends to {}, which is no list"),
        (b"\x80\x02]K\x01K\x02s.", r"sets items of \[\], which is no dictionary"),
        (b"\x80\x02}(K\x01K\x02u.", "it holds the key 1; the keys of image data are text"),
        (b"\x80\x02}(X\x01\x00\x00\x00aa.", r"damaged|half an item|which is no list"),
        (b"\x80\x02(0.", "instruction POP"),
        (b"\x80\x02(.", "takes more from its stack than it has put there"),
        (b"\x80\x02cnumpy\nndarray\n.", "a name where a value belongs"),
        (b"c" + b"m" * 10_000 + b"\nn\n.", r"asks for 'mmm.*\.\.\..*mm.n', which"),
        (b"I" + b"x" * 10_000 + b"\n.", r"damaged \(ValueError: invalid literal.{,60}\.\.\."),
    ],
)
def test_refusals_say_why(content, message):
    with pytest.raises(RefusedError, match=message):
        read_data(content)


def doubled(kind, times=200):
    """A container of two of a container of two ... : few bytes that unfold to 2 ** times items."""
    start = {"list": b"](K\x01e", "tuple": b"K\x01\x85"}[kind] + b"q\x00"
    again = {"list": b"](h\x00h\x00eq\x00", "tuple": b"h\x00h\x00\x86q\x00"}[kind]
    return start + again * times


@pytest.mark.parametrize("kind", ["list", "tuple"])
def test_containers_that_unfold_without_end_neither_hang_nor_flood(kind):
    bomb = doubled(kind)
    assert len(bomb) < 3500
    assert len(shown(read_data(b"\x80\x02" + bomb + b"."))) < 100
    for use in (
        b"}" + bomb + b"K\x01s",  # a key, which would be hashed
        b"}(" + bomb + b"K\x01u",
        b"(" + bomb + b"K\x01d",
        b"cnumpy\ndtype\n" + bomb + b"\x85R",
        b"c_codecs\nencode\n" + bomb + b"h\x00\x86R",
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01" + bomb + b"cnumpy\ndtype\nU\x02u1\x85R\x89U\x01atb",
        b"cnumpy\nndarray\n" + bomb + b"R",
    ):
        with pytest.raises(RefusedError) as caught:
            read_data(b"\x80\x02" + use + b".")
        assert len(str(caught.value)) < 200


def test_shapes_of_many_or_large_numbers_are_not_multiplied(python2_pickle):
    content = python2_pickle({"data": np.zeros((2, 3), np.uint8)})
    shape = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in (2, 3)) + b"t"
    for other in (b"(" + b"K\x01" * 100_000 + b"t", b"(" + (b"\x8a\x20" + b"\x7f" * 32) * 5 + b"t", b"U\x0223"):
        with pytest.raises(RefusedError, match=r"array of shape .{,150} with 6 bytes"):
            read_data(content.replace(shape, other))


def test_a_far_place_in_the_memo_costs_nothing():
    assert read_data(b"\x80\x02]r\xff\xff\xff\xff.") == []


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_python3_arrays_of_every_protocol(protocol, order):
    array = np.asarray(np.random.default_rng(0).integers(0, 256, (5, 7)).astype(np.uint8), order=order)
    batch = read_data(pickle.dumps({"data": array, "labels": [0, 9, 300, -1]}, protocol=protocol))
    assert batch["labels"] == [0, 9, 300, -1]
    assert np.array_equal(batch["data"], array)


def test_python2_text_comes_back_as_bytes(python2_pickle):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    batch = read_data(python2_pickle({"data": array, "names": ["cat"]}))
    assert batch.keys() == {b"data", b"names"}
    assert np.array_equal(batch[b"data"], array)
    assert batch[b"names"] == [b"cat"]


def test_shape_must_fit_the_bytes(python2_pickle):
    content = python2_pickle({"data": np.zeros((2, 3), np.uint8)})
    with pytest.raises(RefusedError, match=r"shape \(2, 4\) with 6 bytes"):
        read_data(content.replace(struct.pack("<i", 3) + b"t", struct.pack("<i", 4) + b"t"))


def test_every_truncation_and_bit_flip_is_data_or_refused(python2_pickle):
    """Damage gives a RefusedError or harmless plain values; never another exception, never an import."""
    rng = random.Random(0)
    content = python2_pickle({"data": np.zeros((2, 5), np.uint8), "labels": [1, 2], "names": ["cat", "dog"]})
    for _ in range(100):
        with pytest.raises(RefusedError):
            read_data(content[: rng.randrange(len(content))])
    before = set(sys.modules)
    for _ in range(1000):
        position, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
        damaged = bytearray(content)
        damaged[position] ^= bit
        try:
            read_data(bytes(damaged))
        except RefusedError:
            continue
    assert set(sys.modules) == before


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused_or_plain(content):
    try:
        value = read_data(b"\x80\x02" + content)
    except RefusedError:
        return
    assert value is None or isinstance(value, bool | int | float | str | bytes | list | tuple | dict)
