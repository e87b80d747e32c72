"""One of two processes that train every head with DDP over gloo: `ddp_rank.py RANK RANKS PORT FOLDER`."""

from pathlib import Path

import torch
from ranks import join, leave
from torch import nn
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
    rank, _, folder = join()
    alone = {name: train(name) for name in heads.names()}
    together = {name: train(name, rank, 2) for name in heads.names()}
    torch.save({"alone": alone, "together": together}, Path(folder, f"{rank}.pt"))
    leave()
