"""One of two ranks, the second of which has a short or wrong third batch: `uneven_rank.py RANK RANKS PORT CALL`."""

import os

import torch
from ranks import join
from torch.distributed.device_mesh import init_device_mesh

from maxsep.heads import ClassParallelHead

TARGET = torch.zeros(3, dtype=torch.int64)
WRONG = {"size": TARGET[:2], "label": TARGET + 7, "dtype": TARGET.int()}
SHAPES = {"mesh": (1, 2), "copies": (2, 1)}

if __name__ == "__main__":
    rank, _, call = join()
    group = init_device_mesh("cpu", SHAPES[call]) if call in SHAPES else None
    head = ClassParallelHead(4, 7, data_parallel=call != "shared", group=group)
    loss = torch.compile(head.loss, backend="eager") if call == "compiled" else head.loss
    for step, short in enumerate((0, 0, rank)):
        x = torch.randn(3 - short * (call not in WRONG), 4)
        target = WRONG[call] if short and call in WRONG else TARGET[: len(x)]
        try:
            _ = getattr(head, call)(x, *[1] * (call == "topk")) if call in ("forward", "topk") else loss(x, target)
        except (TypeError, ValueError):
            os._exit(7 if step == 2 else 8)
    os._exit(0)
