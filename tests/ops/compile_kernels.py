"""Compile what the package launches for a GPU without one, and print what the machine code moves: run by a test.

The kind of GPU is an argument: 90 for an H100 or H200, 100 and 120 for later ones, where only the largest are compiled.

Every launch is compiled as Triton would compile it there: from the strides, alignments and numbers of that very call.
"""

import collections
import json
import re
import subprocess
import sys
import tempfile
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from maxsep.ops import padding as layer_padding
from maxsep.ops.adjoint_pair import padded_empty
from maxsep.ops.fused import joined, row_losses, tile_form, triton_form
from maxsep.ops.fused.reduction import Counting, _Reduced
from maxsep.ops.row_cross_entropy import gradient_op, loss_op
from maxsep.ops.triton_householder import householder_adjoint_op, householder_op
from maxsep.ops.triton_scan import adjoint_op, separate_op

SHARED_MEMORY = {90: 232_448, 100: 232_448, 120: 101_376}  # what one program may take of a multiprocessor
launched = []


class Device:
    """As much of a device as the compiler asks for: an H100, or a later kind."""

    kind = 90

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", self.kind, 32)


def compile_only(kernel, grid):
    assert all(0 < size < 2**31 for size in grid[:1]), grid
    assert all(0 < size < 2**16 for size in grid[1:]), grid

    def launch(*given, **options):
        compiled = kernel.run(*given, grid=grid, warmup=True, **options)
        assert compiled.asm["cubin"]
        assert compiled.metadata.shared <= SHARED_MEMORY[Device.kind], (kernel.__name__, compiled.metadata.shared)
        launched.append({"kernel": kernel.__name__, "module": kernel.fn.__module__, **_found(compiled)})
        launched[-1] |= {"options": [name for name, chosen in options.items() if chosen is True], "direct": False}
        launched[-1]["stages"] = options.get("STAGES")
        return Direct(kernel, compiled, options)

    return launch


class Direct:
    """What was compiled for a launch; it is launched again only where Triton would have chosen it again."""

    def __init__(self, kernel, compiled, options):
        self.kernel, self.compiled, self.options = kernel, compiled, options

    def __getitem__(self, grid):
        def launch(*given):
            names = [name for name in self.kernel.arg_names if name in self.options]
            assert self.kernel.arg_names[-len(names) :] == names
            assert given[-len(names) :] == tuple(self.options[name] for name in names)
            again = compile_only(self.kernel, grid[:3])(*given[: -len(names)], **self.options)
            assert again.compiled is self.compiled, (self.kernel.__name__, given)
            launched[-1]["direct"] = True

        return launch


def _found(compiled):
    """Say what became of a program: what it moves, and what it takes of a processor."""
    code = compiled.asm["ptx"]
    moved = collections.Counter(re.findall(r"(?:ld|st)\.global[.\w]*", code))
    taken = {"stack": _stack(compiled.asm["cubin"]), "shared": compiled.metadata.shared}
    return {"moved": moved, "wgmma": "wgmma" in code, "shares registers": "setmaxnreg" in code, **taken, **_loop(code)}


def _loop(code):
    """Say whether copies are on their way, and products under way, while a program does something else."""
    return {
        "copies ahead": "cp.async" in code,
        "products ahead": bool(re.search(r"wgmma\.wait_group\.sync\.aligned\s+[1-9]", code)),
    }


def _stack(cubin):
    """Return the bytes of a program's stack: registers that were too few."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        told = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", told.stdout)[1])


def scans():
    sizes = (
        (torch.float32, 1024, 100_000),
        (torch.bfloat16, 1024, 100_000),
        (torch.bfloat16, 2, 100_000),
        (torch.float32, 1, 2),
    )
    yield from products("forward", separate_op, "adjoint", adjoint_op, sizes)


def reflections():
    sizes = (
        (torch.float32, 1024, 1_000),
        (torch.bfloat16, 1024, 10_000),
        (torch.float32, 1024, 32_768),
        (torch.bfloat16, 1024, 100_000),
        (torch.bfloat16, 2, 100_000),
        (torch.float32, 1, 2),
    )
    yield from products("householder", householder_op, "householder adjoint", householder_adjoint_op, sizes)


def products(name, op, adjoint_name, adjoint, sizes):
    """A product and its adjoint at several sizes, and in the ways that a matrix may lie in memory."""
    for dtype, rows, num_classes in sizes:
        x = padded_empty(torch.empty(0), (rows, num_classes - 1), dtype)
        g = torch.empty(rows, num_classes, dtype=dtype)
        told = f"{rows} rows of {num_classes}, {dtype}"
        yield f"{name}, {told}", lambda x=x: op(x, 0.5, x.dtype)
        yield f"{adjoint_name}, {told}", lambda g=g: adjoint(g, 0.5, g.dtype)
    z, g = torch.empty(1024, 1000, dtype=torch.bfloat16), torch.empty(1024, 1000)
    yield f"{name}, padded", lambda: op(z, 0.5, torch.float32, 1)
    yield f"{adjoint_name}, padded", lambda: adjoint(g, 0.5, torch.bfloat16, 1)
    yield f"{name}, transposed", lambda: op(torch.empty(999, 512).T, 1.0, torch.float32)
    yield f"{name}, rows far apart", lambda: op(apart(2, 9), 1.0, torch.float32)


def apart(rows, width):
    """Rows that start 2^32 numbers after each other; nothing of the memory between is ever touched."""
    return torch.empty((rows - 1 << 32) + width, dtype=torch.float32).as_strided((rows, width), (1 << 32, 1))


def layers():
    for k, width, dtype, bias in (
        (999, 2048, torch.bfloat16, True),
        (999, 2048, None, False),
        (1001, 33, torch.bfloat16, True),
    ):
        weight = torch.empty(k, width)
        given = (weight, torch.empty(k) if bias else None, dtype)
        yield f"layer, {k} x {width}, {dtype}", lambda given=given: layer_padding.padded_op(*given)


def losses():
    for rows, num_classes, reduction, padding in (
        (1024, 1000, "mean", 0),
        (1024, 1000, "mean", 1),
        (7, 5_000, "sum", 0),
        (1, 2, "none", 7),
    ):
        z = padded_empty(torch.empty(0), (rows, num_classes - 1 + padding), torch.bfloat16)
        numbers = None if reduction == "mean" else torch.ones(num_classes)
        options = (0.5, 0.0 if reduction == "mean" else 0.1, -100)

        def both(z=z, numbers=numbers, options=options, reduction=reduction, padding=padding):
            target = torch.zeros(len(z), dtype=torch.int64)
            loss, lse, scale = loss_op(z, target, numbers, numbers, *options, padding, reduction)
            gradient_op(loss, z, target, numbers, numbers, lse, scale, *options, padding)

        yield f"loss, {rows} rows of {num_classes}, {reduction}, padding {padding}", both


def streams():
    for dtype, num_classes, batch, width, kind, full in (
        (torch.bfloat16, 5_000, 256, 192, "", True),
        (torch.bfloat16, 5_000, 256, 192, ", plain", False),
        (torch.bfloat16, 5_000, 256, 192, ", householder", False),
        (torch.bfloat16, 5_001, 256, 192, ", householder", True),
        (torch.float32, 300, 20, 5, ", plain", False),
        (torch.float16, 2, 1, 1, "", True),
        (torch.bfloat16, 20_000, 512, 512, "", False),  # enough classes for a program to fold a block
        (torch.bfloat16, 36_000, 520, 512, ", householder", True),  # enough for a tail
        (torch.bfloat16, 36_000, 520, 512, "", False),
        (torch.float16, 36_000, 520, 256, ", plain", False),
        (torch.bfloat16, 36_008, 200, 128, "", True),
        (torch.bfloat16, 20_001, 512, 512, ", householder, smoothed", False),  # all that is not of classes
    ):
        yield f"stream, {num_classes} classes, {dtype}{kind}", stream(dtype, num_classes, batch, width, kind, full)


def tiles():
    """What takes the place of Hopper's own products on other GPUs, and with versions of Triton that were not tried."""
    for num_classes, kind, full in (
        (5_000, "", True),
        (5_000, ", plain", False),
        (5_000, ", householder", False),
        (5_001, ", householder", True),
    ):
        both = stream(torch.bfloat16, num_classes, 256, 192, kind, full)
        yield f"tiles, {num_classes} classes, torch.bfloat16{kind}", lambda both=both: in_tiles(both)
    tail = stream(torch.bfloat16, 36_000, 520, 512, ", householder", True)
    yield "tiles, a tail", lambda: in_tiles(tail)
    # these rows are too long for Hopper's own
    yield "tiles, 576 features", stream(torch.bfloat16, 5_000, 640, 576, ", householder", True)


def in_tiles(call):
    no_tail = mock.patch.object(triton_form, "form_of_tail", return_value=tile_form)
    with mock.patch.object(joined, "form_of", return_value=tile_form), no_tail:
        call()


def reductions():
    """Both ways between losses of samples and one number."""
    for batch, kind, smoothing, weighted in (
        (4096, "mean", 0.0, False),
        (70, "mean", 0.1, True),
        (1, "sum", 0.1, False),
    ):
        counting = Counting(100_000, -100, smoothing, kind)
        weight = torch.ones(100_000) if weighted else None

        def both(batch=batch, weight=weight, counting=counting):
            nll, smooth = (torch.zeros(batch, requires_grad=True) for _ in range(2))
            target = torch.zeros(batch, dtype=torch.int64)
            _Reduced.apply(nll, smooth, target, weight, counting).backward()

        yield f"reduction, {batch} samples, {kind}", both


def tails():
    for width in (256, 512):
        yield f"stream, {width} features", stream(torch.bfloat16, 36_000, 520, width, ", householder", True)


def stream(dtype, num_classes, batch, width, kind, full):
    """Return both passes of the streamed loss."""
    separate = kind != ", plain"
    x = torch.randn(batch, width).to(dtype).requires_grad_()
    weight = torch.randn(num_classes - separate, width).to(dtype).requires_grad_()
    offset, shares = (torch.ones(num_classes, requires_grad=True), torch.ones(num_classes)) if full else (None,) * 2
    options = {"radius": 0.5 if separate else 1.0, "separate": separate, "form": "triton"}
    options["smoothing"] = full or "smoothed" in kind
    options["basis"] = "householder" if "householder" in kind else "recursive"

    def both():
        nll, smooth = row_losses(x, weight, torch.zeros(len(x), dtype=torch.int64), offset, shares, **options)
        (nll.sum() + smooth.sum()).backward()

    return both


if __name__ == "__main__":
    driver.set_active(Device())
    JITFunction.__getitem__ = compile_only
    layer_padding.takes = lambda values: True
    torch.cuda.get_device_capability = lambda device=None: (Device.kind // 10, 0)
    triton_form.processors = joined.processors = lambda device: 132
    found = {}
    Device.kind = int(sys.argv[1])
    parts = (scans, reflections, layers, losses, streams, tiles, reductions) if Device.kind == 90 else (tails,)
    for part in parts:
        for what, call in part():
            call()
            found[what] = launched.copy()
            launched.clear()
    print(json.dumps(found))
