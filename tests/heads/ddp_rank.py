"""One of two processes that train every head with DDP over gloo: `ddp_rank.py RANK RANKS PORT FOLDER`."""

import contextlib
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from maxsep import heads

OPTIONS = {"hpn": {"iterations": 50}, "maxsep": {"class_order": [3, 1, 4, 0, 2]}}


def train(name, rank=0, world=1):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 12), nn.Tanh())
    model = nn.Sequential(backbone, heads.build(name, 12, 5, **OPTIONS.get(name, {}))).double()
    module = DistributedDataParallel(model) if world > 1 else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        x = torch.randn(8, 6, dtype=torch.float64, generator=generator)
        y = torch.randint(5, (8,), generator=generator)
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[rank::world]), y[rank::world]).backward()
        optimiser.step()
    return {key: value.clone() for key, value in model.state_dict().items()}


if __name__ == "__main__":
    rank, port, folder = int(sys.argv[1]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    alone = {name: train(name) for name in heads.names()}
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    together = {name: train(name, rank, 2) for name in heads.names()}
    torch.save({"alone": alone, "together": together}, folder / f"{rank}.pt")
    with contextlib.suppress(RuntimeError):  # the first to finish closes its connections
        distributed.barrier()
    os._exit(0)  # threads of gloo that run while the interpreter is shut down sometimes abort the process
