"""The paper's head with its classes spread over the ranks of torch.distributed, for more classes than one GPU holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from maxsep.checks import (
    IGNORED,
    Reduction,
    check_count,
    check_floating,
    check_index_type,
    check_labels,
    check_last_dimension,
    check_num_classes,
    check_per_class,
    check_radius,
    check_reduction,
    check_smoothing,
)
from maxsep.heads.base import Identified, default_init
from maxsep.heads.maxsep import MaxSeparationHead
from maxsep.ops import wide_dtype
from maxsep.ops.collectives import GatherSamples, Group, OwnSamples, Replicate, gathered
from maxsep.ops.modes import is_autocasting, is_traced
from maxsep.ops.sharded import Shard, sharded_cross_entropy, sharded_logits, sharded_topk

__all__ = ["ClassParallelHead"]


class ClassParallelHead(Identified):
    """`MaxSeparationHead` with its rows, their gradients and the logits spread over ranks.

    Rank q of R owns the classes from q C // R on. `loss` is the cross-entropy over all C classes, equal to
    F.cross_entropy of the whole head's logits, for one all-gather of three numbers per sample and rank; its backward
    pass sends nothing but the gradient of x. No rank ever holds all logits or all rows.

    By default every rank passes the same x and target (the network runs alike on all of them) and gets the gradient of
    the whole loss. With `data_parallel`, each rank passes its own part of the batch, of the same size everywhere: x and
    target are gathered first, `mean` and `sum` run over the samples of all ranks, everything else is returned for the
    rank's own samples, and the gradient of x is scaled such that a network inside DDP, which takes the mean over ranks,
    gets the gradient of that loss.

    Args:
        in_features: Width of the features that the network gives.
        num_classes: C, at least 2; fewer than ranks is allowed, some then own none.
        radius: Length of the class vectors.
        bias: Whether the trained layer has a bias.
        group: The ranks that share the classes; all of them by default.
        data_parallel: Whether each rank has a batch of its own.
        validate: Whether ranks compare the sizes of their batches in every call, for one more exchange of a number and,
            on a GPU, a wait for it. Otherwise they do in the first call only, outside of compiled code.
        device: Where the parameters are made.
        dtype: Of the parameters.

    Pitfall: keep the head out of DDP, which would give all ranks the rows of rank 0, and let its parameters have an
    optimiser on each rank. A norm of gradients is a rank's own: sum the squares over ranks before clipping by it.
    Batches of other sizes on other ranks cannot be noticed without one more call between them: after the first step
    gloo ends a process, NCCL hangs or mixes samples, unless `validate` is set. Drop an incomplete last batch
    (drop_last=True), or fill it up with samples whose target is `ignore_index`.

    >>> import tempfile
    >>> place = f"file://{tempfile.mkdtemp()}/ranks"
    >>> distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    >>> head = ClassParallelHead(64, 1000)
    >>> head.loss(torch.randn(8, 64), torch.arange(8)).shape, head
    (torch.Size([]), ClassParallelHead(in_features=64, num_classes=1000, radius=1, classes 0 to 999, rank 0 of 1))
    >>> distributed.destroy_process_group()
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        radius: float = 1.0,
        bias: bool = True,
        *,
        group: Group = None,
        data_parallel: bool = False,
        validate: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = check_count("in_features", in_features)
        self.num_classes = check_num_classes(num_classes)
        self.radius = check_radius(radius)
        self.group, self.data_parallel = group, data_parallel
        self.validate, self._has_compared = validate, False
        self.shard = Shard(self.num_classes, *_place_in(group))
        start, stop = self.shard.rows
        self.weight = nn.Parameter(torch.empty(stop - start, self.in_features, device=device, dtype=dtype))
        own_bias = nn.Parameter(torch.empty(stop - start, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", own_bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new parameters as nn.Linear does, others on every rank even where all ranks have the same seed."""
        seed = int(torch.randint(2**62, (), device="cpu")) + self.shard.rank
        if not self.weight.is_meta:
            default_init(self.weight, self.bias, torch.Generator(self.weight.device).manual_seed(seed))

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        ignore_index: int = IGNORED,
    ) -> Tensor:
        """Return the cross-entropy, as F.cross_entropy gives it for the logits of all classes, in at least float32.

        Args:
            x: (B, in_features).
            target: (B,), class indices from 0 to C-1 or `ignore_index`. One that is neither raises in CPU tensors and
                makes the loss NaN elsewhere, where looking would make the host wait.
            weight: Of all classes, (C,), the same on all ranks, as in F.cross_entropy; a constant.
            reduction: `mean` (weighted) over the samples that count, `sum`, or `none` for one value per sample.
            label_smoothing: In [0, 1].
            ignore_index: The target of samples that shall not count.
        """
        self._check_loss(x, target, ignore_index)
        check_reduction(reduction)
        smoothing = check_smoothing(label_smoothing)
        weight = check_per_class("weight", weight, self.num_classes, x.device)
        self._check_input(x)
        every = gathered(target, self.group).flatten() if self.data_parallel else target
        counts, is_class = every != ignore_index, (every >= 0) & (every < self.num_classes)
        index, z = torch.where(is_class, every, 0), self._outputs(x)
        weight = None if weight is None else weight.detach().to(wide_dtype(z))
        values = sharded_cross_entropy(z, index, self.shard, self.radius, smoothing, weight, self.group)
        values = torch.where(counts, torch.where(is_class, values, torch.nan), 0.0)
        if reduction == "none":
            return self._own(values)
        counted = counts if weight is None else torch.where(counts, weight[index], 0.0)
        return values.sum() / counted.sum() if reduction == "mean" else values.sum()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all classes, (..., C), for evaluation and for losses of your own at a small C.

        Differentiable, if every rank computes the same loss from them; all logits travel to all ranks.
        """
        self._check_input(x)
        z = self._outputs(x)
        logits = self._own(sharded_logits(z, self.shard, self.radius, self.group))
        logits = logits if is_autocasting(z.device.type) else logits.to(z.dtype)
        return logits.view(*x.shape[:-1], self.num_classes)

    def topk(self, x: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
        """Return the k largest logits, (..., k), and their classes, for one all-gather of 2k+1 numbers a sample."""
        if check_count("k", k) > self.num_classes:
            raise ValueError(f"k must be at most the number of classes, {self.num_classes}, got {k}. Ask for fewer.")
        self._check_input(x)
        values, classes = sharded_topk(self._outputs(x), k, self.shard, self.radius, self.group)
        return self._own(values).view(*x.shape[:-1], k), self._own(classes).view(*x.shape[:-1], k)

    def predict(self, x: Tensor) -> Tensor:
        """Return the class of each sample, (...,): the largest logit over all ranks."""
        return self.topk(x, 1)[1][..., 0]

    @torch.no_grad()
    def full_state_dict(self) -> dict[str, Tensor]:
        """Return the state dict of the `MaxSeparationHead` with all rows, on every rank; all ranks must call it.

        Pitfall: it holds all (C-1) in_features numbers. `maxsep.surgery.save_shards` never does.
        """
        state = {name: self._whole(parameter) for name, parameter in self.named_parameters()}
        return state | {"_extra_state": super().get_extra_state()}

    @torch.no_grad()
    def load_full_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take this rank's rows from the state dict of a `MaxSeparationHead`; nothing is sent."""
        expected = {name for name, _ in self.named_parameters()}
        if set(state) - {"_extra_state"} != expected:
            raise ValueError(
                f"this head loads {sorted(expected)}, got {sorted(set(state) - {'_extra_state'})}. "
                "Pass the state dict of a MaxSeparationHead that has a bias if this head has one, and none otherwise."
            )
        if "_extra_state" in state:
            super().set_extra_state(state["_extra_state"])
        for name, parameter in self.named_parameters():
            whole = (self.num_classes - 1, *parameter.shape[1:])
            if state[name].shape != whole:
                raise ValueError(
                    f"{name!r} must be {whole}, the rows of all ranks, got {tuple(state[name].shape)}. "
                    "A rank's own state_dict() goes to load_state_dict on the same rank of as many ranks."
                )
        for name, parameter in self.named_parameters():
            parameter.copy_(state[name][slice(*self.shard.rows)])

    def to_head(self) -> MaxSeparationHead:
        """Return the head of a single process with all rows, on every rank: to fold, export or save it."""
        options = {"device": self.weight.device, "dtype": self.weight.dtype}
        head = MaxSeparationHead(self.in_features, self.num_classes, self.radius, self.bias is not None, **options)  # type: ignore[arg-type]
        head.load_state_dict(self.full_state_dict())
        return head.train(self.training)

    def get_extra_state(self) -> Tensor:
        """Return [num_classes, radius, first class, one beyond the last class] of this rank."""
        own = torch.tensor([self.shard.start, self.shard.stop], dtype=torch.float64, device="cpu")
        return torch.cat([super().get_extra_state(), own])

    def set_extra_state(self, state: Tensor) -> None:
        """Compare with the numbers of a state dict that is being loaded."""
        if state.is_meta:
            return
        if state.numel() != 4:
            raise ValueError("this state dict is that of a whole head, with all rows. Use load_full_state_dict(state).")
        super().set_extra_state(state[:2])
        start, stop = (round(number) for number in state[2:].tolist())
        if (start, stop) != (self.shard.start, self.shard.stop):
            raise ValueError(
                f"this state dict holds {_classes(start, stop)}, but rank {self.shard.rank} of {self.shard.ranks} owns "
                f"{_classes(self.shard.start, self.shard.stop)}. What maxsep.surgery.save_shards or full_state_dict "
                "gives loads at any number of ranks."
            )

    def extra_repr(self) -> str:
        """Say the sizes, the radius and this rank's classes."""
        shard = self.shard
        told = f"in_features={self.in_features}, num_classes={self.num_classes}, radius={self.radius:g}, "
        told += f"{_classes(shard.start, shard.stop)}, rank {shard.rank} of {shard.ranks}"
        return told + "".join(f", {name}=True" for name in ("data_parallel", "validate") if getattr(self, name))

    def _check_input(self, x: Tensor) -> None:
        """Check what this rank knows of x, and in the first call, or if asked to, that others have as many samples."""
        check_last_dimension(check_floating(x), self.in_features, "in_features")
        if is_traced() or (self._has_compared and not self.validate):
            return
        self._has_compared = True
        sizes = gathered(torch.tensor([x.shape[:-1].numel()], device=x.device), self.group).flatten().tolist()
        if len(set(sizes)) > 1:
            raise ValueError(
                f"every rank must pass as many samples as the others, got {', '.join(map(str, sizes))} on ranks 0 to "
                f"{self.shard.ranks - 1}. Drop an incomplete last batch (drop_last=True), or fill it up with samples "
                "whose target is ignore_index."
            )

    def _outputs(self, x: Tensor) -> Tensor:
        step: Any = GatherSamples if self.data_parallel else Replicate
        return F.linear(step.apply(x.reshape(-1, self.in_features), self.group), self.weight, self.bias)

    def _own(self, values: Tensor) -> Tensor:
        step: Any = OwnSamples
        result: Tensor = step.apply(values, self.group) if self.data_parallel else values
        return result

    def _whole(self, parameter: Tensor) -> Tensor:
        whole = parameter.new_empty(self.num_classes - 1, *parameter.shape[1:])
        whole[slice(*self.shard.rows)] = parameter
        for shard in self.shard.others():
            if shard.rows[0] < shard.rows[1]:
                distributed.broadcast(whole[slice(*shard.rows)], group=self.group, group_src=shard.rank)
        return whole

    def _check_loss(self, x: Tensor, target: Any, ignore_index: int) -> None:
        check_index_type(target)
        if x.dim() != 2 or target.shape != x.shape[:1]:
            raise ValueError(
                f"x must be (batch, {self.in_features}) and target (batch,), got shapes {tuple(x.shape)} and "
                f"{tuple(target.shape)}. Flatten further dimensions; turn one-hot rows into indices with argmax(1)."
            )
        check_labels(target, self.num_classes, ignore_index)


def _place_in(group: Group) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError(
            "ClassParallelHead spreads its classes over the ranks of torch.distributed, which is not initialised. "
            "Start the processes with torchrun and call torch.distributed.init_process_group() first; in a single "
            "process use MaxSeparationHead."
        )
    rank = distributed.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {distributed.get_rank()} is not in the group that was given. "
            "Build the head on the ranks of its group only."
        )
    return rank, distributed.get_world_size(group)


def _classes(start: int, stop: int) -> str:
    return f"classes {start} to {stop - 1}" if start < stop else "no classes"
