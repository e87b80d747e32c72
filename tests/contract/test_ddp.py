"""Two real processes over gloo train every head as one process does."""

import os
import socket

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from maxsep import heads

STEPS, BATCH, WIDTH, CLASSES = 20, 8, 12, 5


def train(name, rank=0, world=1):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh())
    options = {"iterations": 50} if name == "hpn" else {}
    model = nn.Sequential(backbone, heads.build(name, WIDTH, CLASSES, **options)).double()
    module = DistributedDataParallel(model) if world > 1 else model
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        x = torch.randn(BATCH, 6, dtype=torch.float64, generator=generator)
        y = torch.randint(CLASSES, (BATCH,), generator=generator)
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[rank::world]), y[rank::world]).backward()
        optimiser.step()
    return {key: value.clone() for key, value in model.state_dict().items()}


def work(rank, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    torch.save({name: train(name, rank, 2) for name in heads.names()}, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.distributed
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(work, args=(port, tmp_path), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    for name in heads.names():
        alone = train(name)
        for key, value in alone.items():
            for result in results:
                torch.testing.assert_close(result[name][key], value, atol=1e-12, rtol=1e-12, msg=f"{name}: {key}")
