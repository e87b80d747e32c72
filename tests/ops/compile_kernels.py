"""Compile every kernel launch of the package for a GPU without one, and print what it takes: run by a test.

The argument is the compute capability: 90 for an H100 or H200, 100 and 120 for later GPUs. Each launch is compiled as
Triton would compile it there: from the strides, alignments and numbers of that very call.
"""

import functools
import json
import re
import subprocess
import sys
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from maxsep.ops import separate_triton
from maxsep.ops.linear_cross_entropy import hopper_kernels, over_samples, tile_kernels
from maxsep.ops.linear_cross_entropy.over_samples import Factors, Layer

SHARED_MEMORY = {90: 232_448, 100: 232_448, 120: 101_376}  # bytes that one program may take
launched = []


class Device:
    """As much of a device as the compiler asks for."""

    capability = 90

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.capability, 32)


def compile_only(kernel, grid):
    assert 0 < grid[0] < 2**31, grid
    assert all(0 < size < 2**16 for size in grid[1:]), grid

    def launch(*arguments, **constants):
        compiled = kernel.run(*arguments, grid=grid, warmup=True, **constants)
        shared = compiled.metadata.shared
        assert shared <= SHARED_MEMORY[Device.capability], (kernel.__name__, shared)
        code = compiled.asm["ptx"]
        launched.append(
            {
                "kernel": kernel.__name__,
                "stack": stack_bytes(compiled.asm["cubin"]),
                "shared": shared,
                "wgmma": "wgmma" in code,
                "copies": "cp.async" in code,
                "words": max([0, *(int(n or 1) * int(bits) for n, bits in WORDS.findall(code))]),
            }
        )

    return launch


WORDS = re.compile(r"(?:ld|st)\.global(?:\.\w+)*?(?:\.v(\d))?\.[bfu](\d+)")


def stack_bytes(cubin):
    """Return the bytes of a program's stack: registers that were too few."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", usage.stdout)[1])


def separations():
    for dtype, rows, num_classes in (
        (torch.float32, 1024, 100_000),
        (torch.bfloat16, 1024, 100_000),
        (torch.bfloat16, 2, 100_000),
        (torch.float32, 1, 2),
    ):
        for is_adjoint in (False, True):
            x = torch.empty(rows, num_classes - 1 + is_adjoint, dtype=dtype)
            name = f"separate, {rows} rows of {num_classes}, {dtype}, adjoint {is_adjoint}"
            yield name, lambda x=x, a=is_adjoint: separate_triton._launch(x, 0.5, x.dtype, a)
    weight = torch.empty(9_999, 512, dtype=torch.bfloat16)
    yield "separate, transposed", lambda: separate_triton._launch(weight.T, 1.0, torch.bfloat16, False)


def rows():
    numbers = torch.zeros(300)
    for offset, z_loss in ((None, None), (torch.zeros(10_000), numbers)):
        z, weight = (torch.empty(300, width, dtype=torch.bfloat16) for width in (10_000, 8))
        layer = Layer(z[:, :8], weight, offset, labels(300))
        factors = Factors(numbers, numbers, z_loss)
        call = functools.partial(over_samples._softmax, z, layer, slice(0, 300), numbers, numbers, factors)
        yield f"rows, offset {offset is not None}", call
    yield "rows, scaled", functools.partial(over_samples.scaled, z, numbers[0], torch.float32)


def products(kernels, widths):
    for width in widths:
        for has_offset in (False, True):
            x, weight = torch.empty(256, width, dtype=torch.bfloat16), torch.empty(5_000, width, dtype=torch.bfloat16)
            offset = torch.zeros(5_000) if has_offset else None
            out, numbers = torch.empty(256, 5_000, dtype=torch.bfloat16), torch.zeros(256)

            def both(x=x, weight=weight, offset=offset, out=out, numbers=numbers):
                kernels.logsumexp(x, weight, offset, labels(256))
                kernels.gradient(x, weight, offset, labels(256), (numbers, numbers, numbers))(out, 512)

            yield f"{kernels.__name__.split('.')[-1]}, {width} features, offset {has_offset}", both


def labels(batch):
    return torch.zeros(batch, dtype=torch.int64)


if __name__ == "__main__":
    driver.set_active(Device())
    JITFunction.__getitem__ = compile_only
    Device.capability = int(sys.argv[1])
    over_samples.has_triton_kernel = lambda z: True
    tile_kernels.multiprocessors = lambda device: 132
    parts = [products(tile_kernels, (192, 512))]
    if Device.capability == 90:
        parts += [separations(), rows(), products(hopper_kernels, (64, 256, 512))]
    results = {}
    for part in parts:
        for name, call in part:
            call()
            results[name] = launched.copy()
            launched.clear()
    print(json.dumps(results))
