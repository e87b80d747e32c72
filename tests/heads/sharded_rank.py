"""One of several ranks whose weights are sharded by torch: `sharded_rank.py RANK RANKS PORT FOLDER`.

Two ranks train under FSDP2 and with tensor-parallel weights, four with classes and copies on a mesh; all is compared
with one process in float64, and the distances are written to FOLDER/RANKS-RANK.pt.
"""

import contextlib
import itertools
import math
from pathlib import Path

import torch
from ranks import join, leave
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from maxsep.heads import ClassParallelHead, MaxSeparationHead
from maxsep.losses import fused_cross_entropy

F64 = torch.float64
ORDER = [3, 1, 4, 0, 2, 6, 5]


def build(**options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), MaxSeparationHead(9, 7, 0.3, **options)).double()


def train(model, optimiser, rank=0, ranks=1, micro_batches=1, clip=None):
    """Train on twenty batches of eight samples, of which every rank takes its part, in one or more micro-batches."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        x, y = torch.randn(8, 6, dtype=F64, generator=generator), torch.randint(7, (8,), generator=generator)
        parts = list(zip(x[rank::ranks].chunk(micro_batches), y[rank::ranks].chunk(micro_batches), strict=True))
        optimiser.zero_grad()
        for number, (inputs, labels) in enumerate(parts):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(number == micro_batches - 1)
            (F.cross_entropy(model(inputs), labels) / micro_batches).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()


def apart(ours, theirs):
    assert ours.keys() == theirs.keys()
    return largest((ours[name], theirs[name]) for name in ours)


def largest(pairs):
    distance = float(torch.stack([(ours - theirs).abs().max() for ours, theirs in pairs]).max())
    assert math.isfinite(distance)  # the largest of Python's numbers may pass over NaN
    return distance


def fsdp_case(rank, ranks, optimise, per_layer=True, micro_batches=1, clip=None, **options):
    alone, model = build(**options), build(**options)
    for part in model if per_layer else ():
        fully_shard(part)
    fully_shard(model)
    assert model[2].weight.to_local().shape != alone[2].weight.shape
    train(alone, optimise(alone.parameters()), clip=clip)
    train(model, optimise(model.parameters()), rank, ranks, micro_batches, clip)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if rank == 0:  # only rank 0 gets the whole
        build(**options).load_state_dict(whole)
        return apart(whole, alone.state_dict())
    return 0.0


def tensor_parallel_case(weight_placement, x_placement, samples, class_order):
    """Weights cut along classes, along features or not at all; x whole or cut along samples."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    alone, head = (build(class_order=class_order)[2] for _ in range(2))
    x = torch.randn(samples, 9, dtype=F64, generator=torch.Generator().manual_seed(2), requires_grad=True)
    y = torch.arange(samples) % 7
    F.cross_entropy(alone(x), y).backward()
    bias_placement = Replicate() if weight_placement == Shard(1) else weight_placement
    head.weight = nn.Parameter(distribute_tensor(head.weight.detach(), mesh, [weight_placement]))
    head.bias = nn.Parameter(distribute_tensor(head.bias.detach(), mesh, [bias_placement]))
    own = distribute_tensor(x.detach(), mesh, [x_placement]).requires_grad_()
    logits = head(own)
    assert logits.shape == (samples, 7)
    assert not any(isinstance(placement, Partial) for placement in logits.placements)
    F.cross_entropy(logits.full_tensor(), y).backward()
    with contextlib.suppress(TypeError):
        fused_cross_entropy(head, own, y)
        return torch.inf
    pairs = [(own.grad, x.grad), (head.weight.grad, alone.weight.grad), (head.bias.grad, alone.bias.grad)]
    return largest((ours.full_tensor(), theirs) for ours, theirs in pairs)


def mesh_case(rank):
    """Two copies of a head whose classes are on two ranks, behind a network in DDP over all four."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "classes"))
    torch.manual_seed(rank)
    fresh = ClassParallelHead(9, 7, 0.3, group=mesh).weight
    drawn = fresh.full_tensor()  # of the first copy
    copies = [torch.empty_like(drawn) for _ in range(4)]
    distributed.all_gather(copies, drawn)
    assert all(torch.equal(copy, drawn) for copy in copies)
    alone, network = build(), build()[:2]
    head = ClassParallelHead(9, 7, 0.3, group=mesh, data_parallel=True, dtype=F64)
    head.load_state_dict(alone[2].state_dict())
    model = DistributedDataParallel(network)
    parameters = [*network.parameters(), *head.parameters()]
    optimiser = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    train(alone, torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9))
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        x, y = torch.randn(8, 6, dtype=F64, generator=generator), torch.randint(7, (8,), generator=generator)
        optimiser.zero_grad()
        head.loss(model(x[rank::4]), y[rank::4]).backward()
        optimiser.step()
    distance = apart(head.to_head().state_dict(), alone[2].state_dict())
    return max(distance, apart(network.state_dict(), alone[:2].state_dict()))


def main():
    rank, ranks, folder = join()

    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-2)

    if ranks == 2:
        weights, inputs, orders = (Shard(0), Shard(1), Replicate()), (Replicate(), Shard(0)), (None, ORDER)
        distances = {
            "sgd": fsdp_case(rank, ranks, sgd),
            "adam": fsdp_case(rank, ranks, lambda parameters: torch.optim.AdamW(parameters, lr=0.01)),
            "root only, class order": fsdp_case(rank, ranks, sgd, per_layer=False, class_order=ORDER),
            "micro-batches": fsdp_case(rank, ranks, sgd, micro_batches=2),
            "clipped": fsdp_case(rank, ranks, sgd, clip=0.05),
            **{str(case): tensor_parallel_case(*case) for case in itertools.product(weights, inputs, (4, 30), orders)},
        }
    else:
        distances = {"mesh": mesh_case(rank)}
    torch.save(distances, Path(folder, f"{ranks}-{rank}.pt"))
    leave()


if __name__ == "__main__":
    main()
