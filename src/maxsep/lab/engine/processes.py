"""The processes that train one run: what they share, what they tell each other, and how weights are sharded (FSDP2)."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed.nn  # imported later, its default arguments would keep a reference to the process group
from torch import Tensor, nn

from maxsep.lab.engine.model import Pipeline
from maxsep.lab.spec import Execution
from maxsep.packages import load_package


def under_torchrun() -> bool:
    """Whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_helper() -> bool:
    """Whether torchrun started this process beside a first one, which writes and prints."""
    return under_torchrun() and os.environ.get("RANK", "0") != "0"


def count_nodes() -> int:
    """Return the number of machines: torchrun's groups of processes, else 1."""
    return int(os.environ.get("GROUP_WORLD_SIZE", "1")) if under_torchrun() else 1


def choose_strategy(execution: Execution) -> Any:
    """Return Fabric's strategy: DDP or FSDP2 for several processes, which torchrun or Fabric starts."""
    started, asked = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), execution.devices
    if under_torchrun() and started != asked:
        raise ValueError(f"devices must be {started}, the processes that torchrun started here, got {asked}.")
    if execution.sharded:
        if not under_torchrun():
            raise ValueError("sharded needs processes that torchrun started: torchrun --nproc-per-node 2 -m maxsep ...")
        if execution.compile:
            raise ValueError("sharded and compile exclude each other: FSDP2 gathers weights between compiled parts.")
        world, module = int(os.environ["WORLD_SIZE"]), load_package("lightning_fabric.strategies", "lab")
        return module.ModelParallelStrategy(shard, data_parallel_size=world, tensor_parallel_size=1)
    if asked * count_nodes() == 1:
        return "auto"
    return "ddp" if under_torchrun() else "ddp_spawn"


def end_group() -> None:
    """End the process group, because threads of gloo that outlive Python's shutdown may abort the process."""
    gc.collect()  # DistributedDataParallel holds the group, and is in a reference cycle
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def shard(pipeline: Pipeline, mesh: Any) -> Pipeline:
    """Shard a pipeline over the processes of a mesh: the head, every block of the network, and the rest at once."""
    fsdp, mesh = load_package("torch.distributed.fsdp", "lab"), mesh["data_parallel"]
    for block in (*_blocks(pipeline.network), pipeline.network.head):
        fsdp.fully_shard(block, mesh=mesh)
    fsdp.fully_shard(pipeline, mesh=mesh)
    fsdp.register_fsdp_forward_method(pipeline, "outputs")
    return pipeline


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the members with weights of the outermost sequences: these are always called as modules."""
    for child in module.children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            yield from (block for block in child if any(True for _ in block.parameters()))
        else:
            yield from _blocks(child)


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gather the sharded ones among tensors; all processes must call it, with the same names."""
    in_order = sorted(tensors.items())  # a gather pairs by position, and safetensors reads names in random order
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in in_order}


def sharded_like(value: Tensor, reference: Tensor) -> Tensor:
    """Cut this process's part out of a whole tensor that all of them have, if the reference is sharded."""
    if not hasattr(reference, "device_mesh"):
        return value
    how = {"device_mesh": reference.device_mesh, "placements": getattr(reference, "placements", None)}
    tensors = load_package("torch.distributed.tensor", "lab")
    cut: Tensor = tensors.distribute_tensor(value.to(reference.device), **how, src_data_rank=None)
    return cut


class Processes:
    """What the processes of a run tell each other; with one process all of it is free."""

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric
        self.rank: int = fabric.global_rank
        self.count: int = fabric.world_size

    def gather(self, value: Tensor) -> Tensor:
        """Stack every process's tensor, one row each, on the CPU; a single process gets its own back."""
        if self.count == 1:
            return value[None]
        value = value.to(self._fabric.device).contiguous()
        rows = [torch.empty_like(value) for _ in range(self.count)]
        torch.distributed.all_gather(rows, value)
        return torch.stack(rows).cpu()

    def agree(self, number: int) -> int:
        """Return the largest number that any process has."""
        return number if self.count == 1 else int(self.gather(torch.tensor([number])).max())

    def check_same(self, what: str, number: int) -> None:
        """Raise on every process if they have different numbers, as without shared storage."""
        if self.count > 1 and len(numbers := set(self.gather(torch.tensor([number])).flatten().tolist())) > 1:
            raise ValueError(f"the processes have different {what} ({sorted(numbers)}): all need the same folders.")

    def share(self, count: int) -> Tensor:
        """Return the positions, of 0 to count - 1, that this process predicts: as many on every one, the last repeated.

        Sharded weights are gathered in every forward pass, so that no process may make one more than the others.
        """
        rows = -(-count // self.count)
        return (torch.arange(rows) * self.count + self.rank).clamp(max=count - 1)

    def join(self, value: Tensor, count: int) -> Tensor:
        """Put what all processes have predicted into the order of the images, each once."""
        if self.count == 1:
            return value
        return self.gather(value).transpose(0, 1).flatten(0, 1)[:count].to(value.device)
