"""Compile kernels for an H100 without one, and print what the machine code loads and stores: run by a test."""

import collections
import json
import re

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from maxsep.ops.kernels import cross_entropy, rows

H100 = GPUTarget("cuda", 90, 32)
UNITS = {"X_ALIGN": 16, "END_ALIGN": 16, "OUT_ALIGN": 16, "ALIGN": 8}


def code(kernel, types, constants, warps=4, stages=1):
    names = kernel.arg_names
    fixed = {name: value for name, value in {**UNITS, "STAGES": stages, **constants}.items() if name in names}
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n].startswith("*") or n == "span"
    }
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in fixed.items()}, aligned)
    compiled = triton.compile(source, target=H100, options={"num_warps": warps})
    assert compiled.asm["cubin"]
    return dict(collections.Counter(re.findall(r"(?:ld|st)\.global[.\w]*|shfl\.sync\.\w+", compiled.asm["ptx"])))


def scans():
    for dtype in ("fp32", "bf16"):
        for kernel, given in ((rows.forward, "x"), (rows.adjoint, "g")):
            types = {given: f"*{dtype}", "out": f"*{dtype}", "partial": "*fp32", "a": "fp32"}
            constants = {f"{given}_column": 1, "out_column": 1, "chunks": 1, "CHUNKS": 1, "ROWS": 1, "BLOCK": 1024}
            yield f"{kernel.__name__} {dtype}", code(kernel, types, constants)
    shared = {"x_column": 1, "out_column": 1, "CHUNKS": 64, "ROWS": 1, "BLOCK": 2048}
    types = {"x": "*bf16", "out": "*bf16", "partial": "*fp32", "a": "fp32"}
    yield "forward, shared rows", code(rows.forward, types, shared, warps=8, stages=3)
    sums = {"x_column": 1, "WEIGHTED": True, "ROWS": 1, "BLOCK": 2048}
    yield "partial sums", code(rows.partial_sums, {"x": "*bf16", "partial": "*fp32", "a": "fp32"}, sums)


def losses():
    types = dict.fromkeys(("weight", "weights", "offset", "loss", "lse", "scale", "upstream", "result"), "*fp32")
    types |= {"factor": "*fp32", "z": "*bf16", "out": "*bf16", "target": "*i64", "a": "fp32", "smoothing": "fp32"}
    flags = {"z_column": 1, "HAS_WEIGHT": True, "HAS_OFFSET": True, "SMOOTH": True, "PER_ROW": False, "MEAN": True}
    flags |= {"ROWS": 1, "BLOCK": 1024, "OUT_ALIGN": 8, "END_ALIGN": 8}
    for kernel in (cross_entropy.forward, cross_entropy.backward, cross_entropy.total):
        yield f"loss {kernel.__name__}", code(kernel, types, flags)


if __name__ == "__main__":
    print(json.dumps(dict([*scans(), *losses()])))
