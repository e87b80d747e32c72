r"""The paper's head with its classes spread over the ranks of torch.distributed, for more classes than one GPU holds.

Rank q owns consecutive rows of the trained layer, and the last rank also the last class, which has no row. With z the
outputs of its rows, a scan gives its logits up to a constant, and one number that later ranks need:

    o_j = s_j z_j - sum_{start<=i<j} r_i z_i,    t_q = - sum_{start<=i<stop} r_i z_i

(s and r carry the radius), and logit_j = o_j + carry_q with carry_q = sum_{p<q} t_p. So (t_q, logsumexp of o, o of the
target) from every rank give all ranks the loss and the probability of each rank's classes. The gradient of z needs the
sum of the logits' gradients over all later classes, which follows from these probabilities: only x's gradient is sent.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._compile import _disable_dynamo
from torch.nn import functional as F

from maxsep.checks import (
    IGNORED,
    Reduction,
    check_count,
    check_features,
    check_number,
    check_per_class,
    check_reduction,
    check_target,
)
from maxsep.heads.base import FixedRadius, default_init
from maxsep.heads.collectives import Group, all_gather, gather_samples, mean_gradients, own_samples, sum_gradients
from maxsep.heads.maxsep import MaxSeparationHead
from maxsep.ops import widened
from maxsep.ops.linear_cross_entropy.over_samples import index_among
from maxsep.ops.tracing import refuse_second_derivatives
from maxsep.simplex import coefficients


class ClassParallelHead(FixedRadius):
    """`MaxSeparationHead` with its rows, their gradients and the logits spread over ranks.

    `loss` is the cross-entropy over all C classes, equal to F.cross_entropy of the whole head's logits, for one
    all-gather of three numbers per sample and rank. No rank ever holds all logits or all rows.

    weight and bias are DTensors, sharded along the classes: torch.distributed.checkpoint saves and loads them, and the
    state of their optimiser, at any number of ranks, and a MaxSeparationHead loads the same folder. `load_state_dict`
    takes the state dict of a MaxSeparationHead too.

    Args:
        group: The ranks that share the classes; the default group if None. Or a DeviceMesh of two dimensions, copies
            and classes: ranks of a row share the classes, those of a column have the same ones, and the gradients of
            their weights are averaged as DDP does.
        data_parallel: Whether each rank passes its part of the batch, of equal size, instead of the same x and target.
            `mean` and `sum` run over the samples of the group, everything else is returned for the rank's samples, and
            the gradient of x is scaled for a network inside DDP, which takes the mean over ranks.
        validate: Whether ranks compare batch sizes and errors in every call, for which the host waits, or in the first.
            Compiled calls then have a graph break; without it, they never compare.

    Pitfall: keep the head out of DDP, and clip its gradients apart from the network's: the norm of DTensors runs over
    all ranks. Batches of different sizes are an error on every rank; drop an incomplete last batch, or fill it with
    samples whose target is `ignore_index`. Without `validate` they hang or end the process.

    >>> import tempfile
    >>> place = f"file://{tempfile.mkdtemp()}/ranks"
    >>> distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    >>> head = ClassParallelHead(64, 1000)
    >>> head.loss(torch.randn(8, 64), torch.arange(8)).shape, head.predict(torch.randn(8, 64)).shape
    (torch.Size([]), torch.Size([8]))
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
        validate: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_classes, radius)
        self.in_features = check_count("in_features", in_features)
        self.mesh, self.copies = None, None
        self._compared: set[bool] = set()  # whether gradients were on in calls that ranks have compared
        if getattr(group, "ndim", None) is not None:  # a DeviceMesh
            if group.ndim != 2:
                raise ValueError(f"group must be a mesh of two dimensions, copies and classes, got {group.ndim}")
            self.mesh, self.copies, group = group, group.get_group(0), group.get_group(1)
        self.group, self.data_parallel, self.validate = group, data_parallel, validate
        if (rank := distributed.get_rank(group)) < 0:
            raise ValueError(f"group must contain this process, got one without rank {distributed.get_rank()}")
        self.shard = _Shard(self.num_classes, rank, distributed.get_world_size(group))
        rows = len(range(*self.shard.rows))
        self.weight = nn.Parameter(self._sharded(torch.empty(rows, self.in_features, device=device, dtype=dtype)))
        local_bias = torch.empty(rows, device=device, dtype=dtype)
        self.register_parameter("bias", nn.Parameter(self._sharded(local_bias)) if bias else None)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw parameters as nn.Linear does, different ones on every rank even where all ranks have the same seed."""
        seed = int(torch.randint(2**62, (), device="cpu")) + self.shard.rank
        weight, bias = _local(self.weight), _local(self.bias)
        if not weight.is_meta:
            default_init(weight, bias, torch.Generator(weight.device).manual_seed(seed))
            for local in (p for p in (weight, bias) if p is not None and self.copies is not None):
                distributed.broadcast(local, group=self.copies, group_src=0)

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
        """Return the cross-entropy of the logits of all classes, as F.cross_entropy does, in at least float32.

        x is (B, in_features) and target (B,). Class indices out of range raise ValueError on the CPU and make the loss
        NaN elsewhere, where looking at them would make the host wait. weight (C,) is a constant and the same on all
        ranks.
        """
        self._check(x, target, weight, reduction, label_smoothing, ignore_index)
        smoothing = float(label_smoothing)
        labels = all_gather(target, self.group).flatten() if self.data_parallel else target
        counts, local = labels != ignore_index, self._local_logits(x)
        index, is_class = index_among(labels, 0, self.num_classes)
        weight = None if weight is None else weight.detach().to(local.dtype)
        factors = self.shard.factors(weight) if smoothing and weight is not None else None
        lse, chosen, weighted = _LogSumExp.apply(local, index, factors, self.shard, self.group)  # type: ignore[no-untyped-call]
        values = (1 - smoothing) * (lse - chosen) * (1 if weight is None else weight[index])
        if weight is None:  # all logits sum to zero, so their unweighted sum vanishes
            values = values + smoothing * lse
        elif smoothing:
            values = values + smoothing / self.num_classes * (weight.sum() * lse - weighted)
        values = torch.where(counts, torch.where(is_class, values, torch.nan), 0.0)
        if reduction == "none":
            return self._own_samples(values)
        total = counts.sum() if weight is None else torch.where(counts, weight[index], 0.0).sum()
        return values.sum() / total if reduction == "mean" else values.sum()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all classes, (..., C), on every rank; every rank must compute the same loss of them."""
        self._check(x)
        logits = _AllLogits.apply(self._local_logits(x), self.shard, self.group)  # type: ignore[no-untyped-call]
        if not torch.is_autocast_enabled(x.device.type):
            logits = logits.to(self.weight.dtype)
        return self._own_samples(logits).view(*x.shape[:-1], self.num_classes)

    @torch.no_grad()
    def topk(self, x: Tensor, k: int = 5) -> tuple[Tensor, Tensor]:
        """Return the k largest logits, (..., k), and their classes, for one all-gather of 2k+1 numbers a sample."""
        if check_count("k", k) > self.num_classes:
            raise ValueError(f"k must be at most num_classes = {self.num_classes}, got {k}")
        self._check(x)
        local, columns = self._local_logits(x), self.shard.columns
        count = min(k, columns)
        values, classes = local[:, :columns].topk(count, dim=1)
        # float64 holds both a float32 and any class index exactly
        message = local.new_full((len(local), 2 * k + 1), -torch.inf, dtype=torch.float64)
        message[:, 0], message[:, 1 : count + 1] = local[:, -1], values
        message[:, k + 1 : k + count + 1] = classes + self.shard.start
        messages = all_gather(message, self.group)
        logits = messages[:, :, 1 : k + 1] + _carries(messages[:, :, 0])[:, :, None]
        best, places = logits.movedim(0, 1).flatten(1).topk(k, dim=1)
        classes = messages[:, :, k + 1 :].movedim(0, 1).flatten(1).gather(1, places).long()
        best, classes = self._own_samples(best.to(local.dtype)), self._own_samples(classes)
        return best.view(*x.shape[:-1], k), classes.view(*x.shape[:-1], k)

    def predict(self, x: Tensor) -> Tensor:
        """Return the class of each sample, (...,): the largest logit over all ranks."""
        return self.topk(x, 1)[1][..., 0]

    @torch.no_grad()
    def to_head(self) -> MaxSeparationHead:
        """Return the head of a single process with all rows, on every rank; all ranks must call it."""
        head = MaxSeparationHead.like(self, self.num_classes, self.radius)
        for name, parameter in self.named_parameters():
            head.get_parameter(name).copy_(parameter.full_tensor())  # type: ignore[attr-defined]  # a DTensor
        return head

    def extra_repr(self) -> str:
        """Return the sizes, the radius and the rank."""
        return f"in_features={self.in_features}, {super().extra_repr()}, rank {self.shard.rank} of {self.shard.ranks}"

    def _sharded(self, local: Tensor, mesh: Any = None) -> Tensor:
        """Wrap this rank's rows as a DTensor of all rows."""
        from torch.distributed.device_mesh import DeviceMesh  # imported late: the package needs neither otherwise
        from torch.distributed.tensor import DTensor, Replicate, Shard

        group, device = self.group or distributed.group.WORLD, local.device.type
        mesh = mesh or self.mesh or DeviceMesh.from_group(group, device)  # type: ignore[arg-type]
        shape = torch.Size((self.num_classes - 1, *local.shape[1:]))
        stride, placements = (self.in_features, 1)[-local.dim() :], (Replicate(), Shard(0))[-mesh.ndim :]
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        if prefix + "class_order" in state_dict:
            raise ValueError(f"'{prefix}class_order' is of a MaxSeparationHead; this head has no class order")
        for name, parameter in self.named_parameters():
            whole: Any = state_dict.get(prefix + name)
            if type(whole) in (Tensor, nn.Parameter) and whole.shape == parameter.shape:  # of a MaxSeparationHead
                local = whole[slice(*self.shard.rows)].to(parameter.device)
                state_dict[prefix + name] = self._sharded(local, getattr(parameter, "device_mesh", None))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check(self, x: Any, *loss: Any) -> None:
        """Check arguments; ranks compare in every call, or in the first with gradients and the first without."""
        if self.validate or not (torch.compiler.is_compiling() or torch.is_grad_enabled() in self._compared):
            self._check_on_all_ranks(x, *loss)
        else:
            self._check_own(x, *loss)

    def _check_own(self, x: Any, *loss: Any) -> None:
        check_features(x, self.in_features, "in_features")
        if loss:
            target, weight, reduction, smoothing, ignore_index = loss
            check_reduction(reduction)
            check_number("label_smoothing", smoothing, "a number in [0, 1]")
            if x.dim() != 2:
                raise ValueError(f"x must be (B, {self.in_features}), got shape {tuple(x.shape)}")
            check_per_class("weight", weight, self.num_classes, x.device)
            check_target(target, x.shape[:1], self.num_classes, ignore_index)

    @_disable_dynamo  # a graph break; torch.compiler.disable would import much
    def _check_on_all_ranks(self, x: Any, *loss: Any) -> None:
        """Let an error of one rank, and batches of different sizes, be an error on every rank."""
        error = None
        try:
            self._check_own(x, *loss)
        except (TypeError, ValueError) as own_error:
            error = own_error
        size = x.shape[:-1].numel() if isinstance(x, Tensor) else 0
        numbers = all_gather(torch.tensor([size, error is not None], device=self.weight.device), self.group)
        if self.copies is not None and torch.is_grad_enabled():  # copies may predict other numbers of samples
            numbers = all_gather(numbers, self.copies)
        sizes, refused = numbers.view(-1, 2).T.tolist()
        if error is not None:
            raise error
        if any(refused):
            raise ValueError(f"x and target must be valid on every rank, rank {refused.index(1)} refused its own")
        if len(set(sizes)) > 1:
            raise ValueError(f"x must have as many samples on every rank, got {sizes}; drop an incomplete last batch")
        self._compared.add(torch.is_grad_enabled())

    def _local_logits(self, x: Tensor) -> Tensor:
        """Return o of this rank's classes and, behind it, t: (B, columns + 1), or (B, columns) on the last rank."""
        step = gather_samples if self.data_parallel else sum_gradients
        x = step(x.reshape(-1, self.in_features), self.group)
        z = widened(F.linear(x, _local(self.weight, self.copies), _local(self.bias, self.copies)))
        s, r = coefficients(self.num_classes, dtype=z.dtype, device=z.device, rows=self.shard.rows)
        sums = (z * (r * self.radius)).cumsum(-1)
        return F.pad(z * (s * self.radius), (0, 1)) - F.pad(sums, (1, 0))

    def _own_samples(self, values: Tensor) -> Tensor:
        local: Tensor = own_samples(values, self.group) if self.data_parallel else values
        return local


class _Shard:
    """The rows and classes of one rank: rows as DTensor's Shard(0) cuts them; the last rank has the last class too."""

    def __init__(self, num_classes: int, rank: int, ranks: int) -> None:
        self.num_classes, self.rank, self.ranks = num_classes, rank, ranks
        self.size = -(-(num_classes - 1) // ranks)  # rounded up
        self.start = min(rank * self.size, num_classes - 1)
        self.rows = self.start, min(self.start + self.size, num_classes - 1)
        self.stop = num_classes if rank == ranks - 1 else self.rows[1]
        self.columns = self.stop - self.start

    def rank_of(self, target: Tensor) -> Tensor:
        return torch.where(target == self.num_classes - 1, self.ranks - 1, target // self.size)

    def factors(self, weight: Tensor) -> Tensor:
        """Return v such that local logits times v, summed over ranks, are all logits times weight (C,)."""
        local, later = weight[self.start : self.stop], weight[self.stop :]
        return torch.cat([local, later.sum()[None]]) if self.stop < self.num_classes else local


class _LogSumExp(torch.autograd.Function):
    """Autograd function from each rank's logits to log-sum-exp, target logit and weighted sum of all, (B,) each."""

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, target: Tensor, factors: Tensor | None, shard: _Shard, group: Group
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        column, is_own = index_among(target, shard.start, shard.stop)
        own_target = torch.where(is_own, local.gather(1, column[:, None])[:, 0], 0.0)
        numbers = [local[:, -1], local[:, : shard.columns].logsumexp(1), own_target]
        if factors is not None:
            numbers.append(local @ factors)
        gathered = all_gather(torch.stack(numbers), group)  # (ranks, 3 or 4, B)
        carries = _carries(gathered[:, 0])
        rank_lse = gathered[:, 1] + carries
        lse = rank_lse.logsumexp(0)
        chosen = (gathered[:, 2] + carries).gather(0, shard.rank_of(target)[None])[0]
        ctx.shard, later = shard, (rank_lse[shard.rank + 1 :] - lse).exp().sum(0)  # probability of later ranks' classes
        ctx.save_for_backward(local, target, factors, carries[shard.rank] - lse, later)
        return lse, chosen, None if factors is None else gathered[:, 3].sum(0)

    @staticmethod
    def backward(ctx: Any, grad_lse: Tensor, grad_target: Tensor, grad_sum: Tensor | None) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("MaxSeparationHead")
        local, target, factors, shift, later = ctx.saved_tensors
        shard = ctx.shard
        grad = (local + shift[:, None]).exp_().mul_(grad_lse[:, None])
        column, is_own = index_among(target, shard.start, shard.stop)
        grad.scatter_add_(1, column[:, None], (grad_target * is_own)[:, None])
        if shard.stop < shard.num_classes:  # the column behind the classes stands for all classes of later ranks
            grad[:, -1] = grad_lse * later + grad_target * (target >= shard.stop)
        if factors is not None and grad_sum is not None:
            grad += grad_sum[:, None] * factors
        return grad, None, None, None, None


class _AllLogits(torch.autograd.Function):
    """Local logits of each rank to the logits of all classes, (B, C), on every rank."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, shard: _Shard, group: Group) -> Tensor:
        ctx.shard = shard
        shards = [_Shard(shard.num_classes, rank, shard.ranks) for rank in range(shard.ranks)]
        message = local.new_zeros(len(local), max(part.columns for part in shards) + 1)  # of equal shape on all ranks
        message[:, 0], message[:, 1 : shard.columns + 1] = local[:, -1], local[:, : shard.columns]
        gathered = all_gather(message, group)
        logits = gathered[:, :, 1:] + _carries(gathered[:, :, 0])[:, :, None]
        return torch.cat([logits[part.rank, :, : part.columns] for part in shards], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivatives("MaxSeparationHead")
        start, stop = ctx.shard.rows
        return torch.cat([gradient[:, start:stop], gradient[:, stop:].sum(1, keepdim=True)], 1), None, None


def _local(parameter: Any, copies: Group = None) -> Any:
    """Return this rank's rows, whose gradients are averaged over ranks that hold the same ones."""
    local = None if parameter is None else parameter.to_local()
    return local if copies is None or local is None else mean_gradients(local, copies)


def _carries(sums: Tensor) -> Tensor:
    """Return the sum over the ranks before each rank; sums (ranks, B)."""
    return torch.cat([torch.zeros_like(sums[:1]), sums[:-1].cumsum(0)])
