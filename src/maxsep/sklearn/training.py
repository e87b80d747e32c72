"""Sample weights, standardisation, hold-out, optimisers and early stopping of the estimator."""

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.model_selection import train_test_split
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor, nn
from torch.nn import functional as F

BLOCK = 2**24  # numbers of a sparse matrix that are dense at the same time
OPTIMISERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


class Samples(NamedTuple):
    """Features (n, D), a tensor or a scipy CSR matrix, class indices (n,) and weights (n,) of mean 1."""

    x: Any
    target: Tensor
    weight: Tensor

    def rows(self, index: Any) -> Self:
        """Return some of the samples."""
        x = self.x[index.numpy(force=True)] if sparse.issparse(self.x) else self.x[index]
        return self._replace(x=x, target=self.target[index], weight=self.weight[index])

    @torch.no_grad()
    def standardised(self, standardise: nn.Module) -> Self:
        """Return the samples behind the network's first layer, which is not trained, on its device and in its dtype."""
        like = next(standardise.buffers())
        x = standardise(as_tensor(self.x).to(like))
        return self._replace(x=x, target=self.target.to(like.device), weight=self.weight.to(like))

    def hold_out(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Split a stratified fraction of the samples off."""
        rows = np.arange(len(self.target))
        kept, held = train_test_split(rows, test_size=fraction, stratify=self.target.numpy(), random_state=seed)
        return self.rows(torch.tensor(kept, device="cpu")), self.rows(torch.tensor(held, device="cpu"))

    def standardisation(self) -> nn.BatchNorm1d:
        """Return (x - mean) / scale as a layer in float64 and evaluation mode; constant features are only centred.

        The scale is the layer's fixed weight, because the square of a float32 scale may leave float32.
        """
        count, width = self.x.shape
        share = (self.weight / self.weight.sum())[:, None]
        step = max(1, BLOCK // count) if sparse.issparse(self.x) else width
        columns = self.x.tocsc() if sparse.issparse(self.x) else self.x
        blocks = (as_tensor(columns[:, start : start + step]).double() for start in range(0, width, step))
        mean, scale = (torch.cat(parts) for parts in zip(*(_mean_and_scale(x, share) for x in blocks), strict=True))
        tiny = torch.finfo(mean.dtype).tiny  # torch 2.11 refuses zero
        layer = nn.BatchNorm1d(width, eps=tiny, device="cpu", dtype=mean.dtype).eval().requires_grad_(False)
        layer.get_buffer("running_mean").copy_(mean)
        layer.weight.copy_(1 / scale)
        return layer


def pick_device(name: str | torch.device) -> torch.device:
    """Return a device that torch can use on this machine; `auto` is its accelerator, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if name == "auto":
        return accelerator or torch.device("cpu")
    try:
        torch.zeros(1, device=name).item()
    except (AssertionError, RuntimeError) as error:  # torch.device also makes devices that are not there
        known = "'auto' or 'cpu'" if accelerator is None else f"'auto', 'cpu' or '{accelerator.type}'"
        raise ValueError(f"device must be {known} on this machine, got {str(name)!r}") from error
    return torch.device(name)


def as_tensor(x: Any) -> Tensor:
    """Return features, which may be sparse, as a dense tensor on the CPU."""
    if isinstance(x, Tensor):
        return x
    return torch.tensor(x.toarray() if sparse.issparse(x) else x, device="cpu")


def weigh(
    X: Any,
    index: NDArray[Any],
    classes: NDArray[Any],
    class_weight: Mapping[Any, float] | str | None,
    sample_weight: Any,
) -> tuple[Samples, Tensor]:
    """Return the samples of positive weight, and the sum of the sample weights of every class, (C,).

    A sample's weight is its own times that of its class, `balanced` being total / (C total_c), over their mean.
    """
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    total = np.bincount(index, weight, len(classes))
    if class_weight == "balanced":
        per_class = total.sum() / (len(total) * np.where(total > 0, total, 1))
    else:
        per_class = compute_class_weight(class_weight, classes=classes, y=classes[index])
    weight = _check_sample_weight(weight * per_class[index], X, dtype=np.float64, ensure_non_negative=True)
    kept = weight > 0  # scikit-learn demands that a weight of zero is an absent sample
    if not kept.any():
        raise ValueError("sample_weight times class_weight must be positive for some sample, got zero for all")
    target, weight = (as_tensor(values) for values in (index[kept], weight[kept] / weight[kept].mean()))
    x = X[kept] if sparse.issparse(X) else as_tensor(X[kept])
    return Samples(x, target, weight), as_tensor(total)


def _mean_and_scale(x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    mean = (share * x).sum(0)
    largest = (x - mean).abs().amax(0)
    varies = largest > 10 * torch.finfo(x.dtype).eps * x.abs().amax(0)
    # squared below: x may be beyond the root of float64's range
    relative = (x - mean) / torch.where(varies, largest, 1)
    return mean, torch.where(varies, largest * (share * relative.square()).sum(0).sqrt(), 1)


class Training:
    """Minimise mean_i weight_i * cross-entropy(network(x_i) + shift, y_i) on mini-batches.

    The first layer of the network standardises and is not trained. shift (C,) is zero, or the log-priors of the
    classes; `options` are of the optimiser; `state` is what `state()` of an earlier training with it returned.
    """

    def __init__(
        self,
        network: nn.Sequential,
        shift: Tensor,
        batch_size: int,
        generator: torch.Generator,
        optimiser: str,
        options: dict[str, Any],
        state: dict[int, dict[str, Any]],
    ) -> None:
        self.standardise, self.network = network[0], network[1:]
        self.shift, self.batch_size, self.generator = shift, batch_size, generator
        self.optimiser = OPTIMISERS[optimiser](self.network.parameters(), **options)
        # the moments of earlier calls with the options of this one
        self.optimiser.load_state_dict(self.optimiser.state_dict() | {"state": state})

    def prepare(self, samples: Samples) -> Samples:
        """Standardise dense samples once for all epochs; sparse ones stay sparse until they are in a batch."""
        return samples if sparse.issparse(samples.x) else samples.standardised(self.standardise)

    def loss(self, samples: Samples) -> Tensor:
        """Return the weighted mean loss of some samples, a scalar."""
        if sparse.issparse(samples.x):
            samples = samples.standardised(self.standardise)
        losses = F.cross_entropy(self.network(samples.x) + self.shift, samples.target, reduction="none")
        return (samples.weight * losses).mean()

    def epoch(self, samples: Samples) -> float:
        """Train on all samples once, in a new order; return the mean of the losses before each step."""
        count = len(samples.target)
        order = torch.randperm(count, generator=self.generator, device="cpu").to(samples.target.device)
        total = torch.zeros_like(self.shift[0])
        self.network.train()
        for rows in order.tensor_split(math.ceil(count / self.batch_size)):
            loss = self.loss(samples.rows(rows))
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch's is not annotated
            self.optimiser.step()
            total += loss.detach() * len(rows) / count
        return total.item()

    @torch.no_grad()
    def validate(self, samples: Samples) -> float:
        """Return the mean loss of held-out samples."""
        self.network.eval()
        count = len(samples.target)
        parts = torch.arange(count, device="cpu").tensor_split(math.ceil(count / self.batch_size))
        return sum(self.loss(samples.rows(part)).item() * len(part) for part in parts) / count

    def state(self) -> dict[int, dict[str, Any]]:
        """Return the moments of every parameter, on the CPU."""
        state = self.optimiser.state_dict()["state"]
        return {
            place: {name: value.cpu() if isinstance(value, Tensor) else value for name, value in values.items()}
            for place, values in state.items()
        }


class EarlyStopping:
    """Keep the weights of the epoch with the smallest held-out loss, and stop `patience` epochs after it."""

    def __init__(self, network: nn.Module, patience: int) -> None:
        self.network, self.patience = network, patience
        self.curve: list[float] = []
        self.best = network.state_dict()

    def should_stop(self, loss: float) -> bool:
        """Record the held-out loss of an epoch; return whether `patience` epochs have passed since the best."""
        if loss < min(self.curve, default=math.inf):
            self.best = copy.deepcopy(self.network.state_dict())
        self.curve.append(loss)
        return len(self.curve) - 1 - self.curve.index(min(self.curve)) >= self.patience

    def restore(self) -> None:
        """Load the weights of the best epoch."""
        self.network.load_state_dict(self.best)
