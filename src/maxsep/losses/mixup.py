"""Mixup: batches in which every sample is a mixture of two."""

import torch
from torch import Tensor

from maxsep.checks import check_floating, check_number


def mixup(x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mix every sample of a batch with another one of the same batch.

    Draws one share ~ Beta(alpha, alpha) and one permutation of partners for the batch, and returns
    (share * x + (1 - share) * x[partners], y, y[partners], share). Train on
    share * loss(logits, y) + (1 - share) * loss(logits, y[partners]). The share is a scalar tensor on the device of x;
    with a generator on that device the host never waits, and the call can be captured in a CUDA graph.
    H. Zhang, M. Cisse, Y. N. Dauphin, D. Lopez-Paz: mixup: Beyond Empirical Risk Minimization. ICLR 2018.

    x (B, ...) is floating point, y (B, ...) of any dtype. alpha = 1 draws the share uniformly, small values leave most
    batches nearly unmixed. A generator on the CPU serves any device.

    >>> batch, labels = torch.eye(3), torch.tensor([0, 1, 2])
    >>> mixed, first, second, share = mixup(batch, labels, 1.0, torch.Generator().manual_seed(0))
    >>> bool(torch.isclose(mixed.sum(1), torch.ones(3)).all()), sorted(second.tolist())
    (True, [0, 1, 2])
    """
    check_floating(x)
    alpha = check_number("alpha", alpha, "a positive number")
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator must be a torch.Generator, got {type(generator).__name__}")
    if x.dim() == 0 or y.shape[:1] != x.shape[:1] or x.shape[0] == 0:
        raise ValueError(f"x and y must hold the same samples, at least one, got {tuple(x.shape)} and {tuple(y.shape)}")
    share = _draw_share(alpha, generator).to(x.device, torch.float64 if x.dtype == torch.float64 else torch.float32)
    # sorting noise, unlike randperm, can be captured in a CUDA graph
    partners = torch.rand(x.shape[0], generator=generator, device=generator.device).argsort()
    mixed = share * x + (1 - share) * x.index_select(0, partners.to(x.device))
    return mixed, y, y.index_select(0, partners.to(y.device)), share


def _draw_share(alpha: float, generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha) as g / (g + h) with two gamma variables."""
    # in logarithms and with gamma(alpha) = gamma(alpha + 1) * u^(1/alpha): for small alpha both would round to zero
    shape = torch.full((2,), alpha + 1, dtype=torch.float64, device=generator.device)
    gammas = torch._standard_gamma(shape, generator=generator)
    uniform = 1 - torch.rand(2, dtype=torch.float64, generator=generator, device=generator.device)
    logs = gammas.log() + uniform.log() / alpha
    return torch.sigmoid(logs[0] - logs[1])
