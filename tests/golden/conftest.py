"""Golden numbers: stored as JSON in `numbers/`, and compared with what the code computes now.

`python tests/golden/regenerate.py` writes them anew, for a change of numbers that is meant; git shows what changed.
"""

import json
import math
import os
import zlib
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent / "numbers"


class Golden:
    """Stored numbers, and the tools that make tensors from names and short summaries of tensors."""

    regenerates = "MAXSEP_REGENERATE_GOLDEN" in os.environ

    def read(self, topic):
        path = FOLDER / f"{topic}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, topic, key, value, tolerance=0.0):
        """Compare an entry with what is stored, numbers to a relative tolerance; or store it, each on its own line."""
        value = json.loads(json.dumps(value))
        if self.regenerates:
            entries = sorted((self.read(topic) | {key: value}).items())
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries)
            (FOLDER / f"{topic}.json").write_text("{\n" + lines + "\n}\n")
        wrong = list(differences(self.read(topic)[key], value, tolerance))
        assert not wrong, "\n".join([f"{len(wrong)} differences from {topic}.json in {key}:", *wrong[:10]])

    def summary(self, tensor):
        """Shape: [sum, sum weighted by cos(i), norm], which notice any change of an entry, permutations included."""
        flat = tensor.detach().double().flatten()
        weighted = flat @ torch.arange(len(flat), dtype=torch.float64).cos()
        return {str(list(tensor.shape)): [flat.sum().item(), weighted.item(), flat.norm().item()]}

    def draw(self, name, *shape):
        """Normal numbers in float64 that depend on a name alone."""
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    @torch.no_grad()
    def fill(self, module):
        """Set every parameter by its name, at the size that keeps activations near 1; buffers stay."""
        for name, parameter in module.named_parameters():
            start = 1.0 if name.endswith("weight") and parameter.dim() == 1 else 0.0
            width = parameter[0].numel() if parameter.dim() > 1 else 25
            parameter.copy_(start + self.draw(name, *parameter.shape) / math.sqrt(width))
        return module


def differences(expected, actual, tolerance, path=""):
    """Yield where two JSON values differ; numbers of a list may by `tolerance` times the largest of them."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        yield from (f"{path}/{key} is in one of them only" for key in sorted(expected.keys() ^ actual.keys()))
        for key in expected.keys() & actual.keys():
            yield from differences(expected[key], actual[key], tolerance, f"{path}/{key}")
        return
    pairs = [expected, actual] if isinstance(expected, list) else [[expected], [actual]]
    if all(isinstance(number, int | float) for numbers in pairs for number in numbers):
        slack = tolerance * max(map(abs, [*pairs[0], 1e-3]))  # sums that cancel are never exactly zero
        if len(pairs[0]) == len(pairs[1]) and all(abs(a - b) <= slack for a, b in zip(*pairs, strict=True)):
            return
    if expected != actual:
        yield f"{path}: {actual} instead of {expected}"


@pytest.fixture(scope="session")
def golden():
    return Golden()
