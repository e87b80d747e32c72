"""Measure the memory of training with many classes on one GPU, beside what it should be on paper.

Three steps with SGD and momentum, weights in float32, 512 features: the whole head with the fused loss on one GPU, and
one rank's part of a head whose classes are spread over several (`ClassParallelHead`, alone in its group).

    python benchmarks/memory_gpu.py --out results/memory_gpu.json
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from record import Record
from torch import distributed

from maxsep.heads import ClassParallelHead, MaxSeparationHead
from maxsep.losses import fused_cross_entropy

FEATURES = 512
WHOLE, PART = "whole head, fused loss", "one rank's rows, class-parallel loss"
CASES = [
    (WHOLE, 1_000_000, 1024), (WHOLE, 10_000_000, 1024), (PART, 1_000_000, 1024), (PART, 1_250_000, 4096),
    (PART, 6_250_000, 1024),
]  # fmt: skip
"""Rows and samples; 6,250,000 rows are a sixteenth of 100 million classes."""


def paper_bytes(kind: str, rows: int, batch: int) -> int:
    """Weights, gradients and momentum; with the fused loss V and dV beside them, else logits and their gradients."""
    return 12 * FEATURES * rows + (4 if kind == WHOLE else 8 * batch // FEATURES) * FEATURES * rows


def measure(kind: str, rows: int, batch: int) -> dict:
    """Train three steps in bfloat16; return the peak in bytes and the seconds of the last step."""
    torch.manual_seed(0)
    head = (MaxSeparationHead if kind == WHOLE else ClassParallelHead)(FEATURES, rows, device="cuda")
    optimiser = torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9, fused=kind == WHOLE, foreach=False)
    x, target = torch.randn(batch, FEATURES, device="cuda"), torch.randint(rows, (batch,), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = fused_cross_entropy(head, x, target) if kind == WHOLE else head.loss(x, target)
        loss.backward()
        optimiser.step()
        torch.cuda.synchronize()
    seconds, peak = time.perf_counter() - began, torch.cuda.max_memory_allocated()
    sizes = {"rows": rows, "batch": batch, "paper_bytes": paper_bytes(kind, rows, batch)}
    return sizes | {"peak_bytes": peak, "seconds": seconds, "loss": loss.item()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    record = Record(parser.parse_args().out, features=FEATURES)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    distributed.init_process_group("nccl", rank=0, world_size=1, device_id=torch.device("cuda", 0))
    for kind, rows, batch in CASES:
        case = f"{rows:,} rows, batch {batch:,}"
        found = record.run(kind, case, lambda kind=kind, rows=rows, batch=batch: measure(kind, rows, batch))
        if found:
            print({key: f"{value:.3g}" for key, value in found.items()}, flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
