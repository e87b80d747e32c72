"""Damage a file or folder in a random way: bits, lengths, types, and files that are removed or swapped."""

import json
import pickle
import shutil
import struct


def block(content, chance, fill):
    start = chance.randrange(len(content))
    end = min(len(content), start + chance.randrange(1, 4096))
    return content[:start] + fill(end - start) + content[end:]


def flip(content, chance):
    changed = bytearray(content)
    for _ in range(chance.randrange(1, 9)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def deepen(content, chance):
    deep = chance.choice((b"[", b'{"a":')) * chance.choice((2_000, 5_000, 100_000))
    return struct.pack("<Q", len(deep)) + deep if content[8:9] == b"{" else deep  # the header of safetensors


def retype(content, chance):
    """Give a random value of a JSON file another type; other files become a JSON value, a pickle or an array."""
    try:
        value = json.loads(content)
        inner = value
        while isinstance(inner, dict | list) and inner:
            key = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            if not isinstance(inner[key], dict | list) or not inner[key] or chance.random() < 0.3:
                values = [None, [], {}, "text", -1, 1e308, True]
                inner[key] = chance.choice([value for value in values if repr(value) != repr(inner[key])])
                break
            inner = inner[key]
        return json.dumps(value).encode()
    except (ValueError, UnicodeDecodeError):
        return chance.choice([b"null", b"[]", b"3", b'{"a": 1}', pickle.dumps([1]), b"\x93NUMPY" + content[6:]])


KINDS = {
    "bits": flip,
    "cut": lambda content, chance: content[: chance.randrange(len(content))],
    "zeroed": lambda content, chance: block(content, chance, bytes),
    "noise": lambda content, chance: block(content, chance, chance.randbytes),
    "emptied": lambda content, chance: b"",
    "longer": lambda content, chance: content + chance.randbytes(chance.randrange(1, 100)),
    "deep": deepen,
    "types": retype,
}
MOVES = ("removed", "swapped", "other's", "other's folder")


def corrupt(work, other, chance, swaps_folders):
    """Damage one file or folder below `work`; return the kind of damage and the path."""
    paths = sorted(path for path in work.rglob("*") if path.is_file())
    while True:
        path, kind = chance.choice(paths), chance.choice((*KINDS, *MOVES))
        content, twin = path.read_bytes(), other / path.relative_to(work)
        if kind in KINDS:
            if not content or (changed := KINDS[kind](content, chance)) == content:
                continue
            path.write_bytes(changed)
        elif kind == "removed":
            path.unlink()
        elif kind == "swapped":
            second = chance.choice([item for item in paths if item.parent == path.parent or item.name == path.name])
            if second.read_bytes() == content:
                continue
            path.write_bytes(second.read_bytes())
            second.write_bytes(content)
        elif kind == "other's":
            if not twin.is_file() or twin.read_bytes() == content:
                continue
            path.write_bytes(twin.read_bytes())
        else:
            if not swaps_folders or not twin.parent.is_dir() or path.parent == work:
                continue
            shutil.rmtree(path.parent)
            shutil.copytree(twin.parent, path.parent)
        return kind, path
