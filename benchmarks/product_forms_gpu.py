"""Both forms of the products that end in the log-sum-exp or in the gradient, beside the bare product, on a Hopper GPU.

A product is called ten times in one CUDA graph. Rates count the multiplications and additions of the product alone, and
not what is behind it; `torch.mm` writes its result and is done. Numbers are compared with float64 in tests/cuda.
Likewise both forms of what makes the gradient of the last classes' rows, which are two products.

    python benchmarks/product_forms_gpu.py
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch
from fused_gpu import captured, timed
from record import Record, say

from maxsep.ops.fused import joined, tile_form, triton_form
from maxsep.ops.fused.state import RowState

CALLS, REPEATS = 10, 15
SHAPES = (
    (4096, 512, 14_336), (4096, 512, 3_072), (4096, 256, 14_336), (4096, 128, 14_336), (4096, 64, 14_336),
    (1024, 512, 14_336), (1024, 128, 100_352), (256, 512, 32_768), (64, 256, 100_352),
)  # fmt: skip
TAILS = ((4096, 512, 8_448), (4096, 256, 8_448), (4096, 128, 8_448), (1024, 512, 8_448))


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


def tail_steps(batch, width, classes, form):
    """Return what is timed of the gradient of the last rows, by name."""
    x, w = (torch.randn(rows, width, device="cuda").bfloat16() / 10 for rows in (batch, classes))
    target, out = torch.randint(classes, (batch,), device="cuda"), torch.empty_like(w)
    ones, offset, columns = (torch.ones(size, device="cuda") for size in (batch, classes, classes))
    triton_form.form_of_tail = lambda x: form

    def step(shift, *parts):
        factors = (9 * ones, ones, ones, None, shift)
        return lambda: triton_form.weight_gradients(x, w, out, target, factors, 1.0, *parts)

    return {
        "rows": step(None, None, None, 0, None),
        "rows, shift": step(ones, None, None, 0, None),
        "rows, offset and its own": step(None, offset, None, 0, columns),
    }


def rates(named, products, *shape):
    """Return time and rate of every step, which is one product or two."""
    found, work = {}, 2e-9 * products * math.prod(shape)
    for name, step in named.items():

        def calls(step=step):
            for _ in range(CALLS):
                step()

        taken = timed(captured(calls).replay, REPEATS)
        times = {key: taken[key] / CALLS for key in ("ms", "least", "most")}
        found[name] = {**times, "repeats": REPEATS, "tflops": work / times["ms"]}
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
            record.run(part, name, lambda shape=shape, form=form: rates(steps(*shape, form), 1, *shape))
    for shape in TAILS:
        part = "{} samples, {} features, {} last classes".format(*shape)
        say(part)
        for name, form in (("tiles", tile_form), ("hopper", hopper)):
            record.run(part, name, lambda shape=shape, form=form: rates(tail_steps(*shape, form), 2, *shape))
    return record.end()


if __name__ == "__main__":
    raise SystemExit(main())
