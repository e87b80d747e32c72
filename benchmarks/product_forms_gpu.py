"""Both forms of the products that end in the log-sum-exp or in the gradient, beside the bare product, on a Hopper GPU.

A product is called ten times in one CUDA graph. Rates count the multiplications and additions of the product alone, and
not what is behind it; `torch.mm` writes its result and is done. Numbers are compared with float64 in tests/cuda.

    python benchmarks/product_forms_gpu.py
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

import torch
from fused_gpu import captured, timed
from record import Record, say

from maxsep.ops.fused import joined, tile_form
from maxsep.ops.fused.state import RowState

CALLS, REPEATS = 10, 15
SHAPES = (
    (4096, 512, 14_336), (4096, 512, 3_072), (4096, 256, 14_336), (4096, 128, 14_336), (4096, 64, 14_336),
    (1024, 512, 14_336), (1024, 128, 100_352), (256, 512, 32_768), (64, 256, 100_352),
)  # fmt: skip


def steps(batch, width, classes, form):
    """Return what is timed, by name; each form has all of them."""
    x, w = (torch.randn(rows, width, device="cuda").bfloat16() / 10 for rows in (batch, classes))
    target = torch.randint(classes, (batch,), device="cuda")
    out = torch.empty(batch, classes, device="cuda", dtype=torch.bfloat16)
    if form is None:
        return {"product": lambda: torch.mm(x, w.T, out=out)}
    joined.form_of = lambda x, **asked: form
    ones, offset, columns = (torch.ones(size, device="cuda") for size in (batch, classes, classes))
    state = RowState.room(joined.parts(x), batch, ones, with_total=False)
    accumulate = joined.accumulating(x, target, state)
    plain = joined.differentiating(x, target, (9 * ones, ones, ones, None, None))
    shifted = joined.differentiating(x, target, (9 * ones, ones, ones, None, ones))
    return {
        "log-sum-exp": lambda: accumulate(w, None, None, 0),
        "log-sum-exp, offset": lambda: accumulate(w, offset, None, 0),
        "gradient": lambda: plain(w, out, None, None, 0, None),
        "gradient, shift": lambda: shifted(w, out, None, None, 0, None),
        "gradient, offset and its own": lambda: plain(w, out, offset, None, 0, columns),
    }


def rates(batch, width, classes, form):
    """Return time and rate of every step."""
    found = {}
    for name, step in steps(batch, width, classes, form).items():

        def calls(step=step):
            for _ in range(CALLS):
                step()

        taken = timed(captured(calls).replay, REPEATS)
        times = {key: taken[key] / CALLS for key in ("ms", "least", "most")}
        found[name] = {**times, "repeats": REPEATS, "tflops": 2e-9 * batch * width * classes / times["ms"]}
    say("  ".join(f"{name} {row['tflops']:.0f}" for name, row in found.items()))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/product_forms_gpu.json"))
    arguments = parser.parse_args()
    hopper = joined._hopper_form(torch.device("cuda", 0)) if torch.cuda.is_available() else None
    if hopper is None:
        sys.exit("this benchmark needs a Hopper GPU, and a version of Triton that is known for it")
    record = Record(arguments.out, dtype="bfloat16")
    for shape in SHAPES:
        part = "{} samples, {} features, {} classes".format(*shape)
        say(part)
        for name, form in (("torch.mm", None), ("tiles", tile_form), ("hopper", hopper)):
            record.run(part, name, functools.partial(rates, *shape, form))
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
