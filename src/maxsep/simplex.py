r"""The matrix: its two coefficient vectors, its dense form, and certificates that need neither.

The columns of P, (k, C) for C classes and k = C - 1 outputs, are the class vectors. With n = k - i classes to the right
of the diagonal in row i, the paper's recursion unrolls (docs/theory.md) to

    P[i, i] = s_i = sqrt(C/k) sqrt(n / (n+1)),    P[i, j] = -r_i = -s_i / n for j > i,    0 for j < i.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from maxsep.checks import check_count


def coefficients(
    num_classes: int,
    *,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str | None = None,
    rows: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the diagonal `s` and the negated off-diagonal `r` of P, each of shape (C-1,), in O(C).

    Both are computed in float64 from integers and rounded once: float32 cannot count beyond 2^24, and n (n+1)
    leaves int32 at n = 46,341. With `rows`, only those of rows start to stop - 1 are made.
    """
    k = num_classes - 1
    start, stop = rows or (0, k)
    n = torch.arange(k - start, k - stop, -1, dtype=torch.float64, device=device)
    s = (n / (n + 1) * (num_classes / k)).sqrt()
    return s.to(dtype), (s / n).to(dtype)


def simplex(
    num_classes: int, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """Build P, shape (C-1, C): unit columns, pairwise cosine -1/(C-1), zero mean.

    Column order and signs are those of the paper's recursion.

    Pitfall: at 100,000 classes the dense matrix has 40 GB. `separate` applies it in O(C) per sample and needs none.

    >>> simplex(3)
    tensor([[ 1.0000, -0.5000, -0.5000],
            [ 0.0000,  0.8660, -0.8660]])
    """
    num_classes = check_count("num_classes", num_classes, least=2)
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be a real floating-point type, got {dtype}")
    try:
        s, r = coefficients(num_classes, dtype=dtype, device=device)
        matrix = (-r).unsqueeze(1).expand(-1, num_classes).triu(1)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # a GPU's error says enough, and others catch it by its type
            raise
        raise MemoryError(f"the dense matrix of {num_classes:,} classes does not fit; separate() needs none") from error
    matrix.diagonal().copy_(s)
    return matrix + 0.0  # turns the -0.0 that triu leaves below the diagonal into 0.0


@dataclass(frozen=True)
class Certificate:
    """The largest deviations of squared column norms from 1, of k times cosines from -1, and of row sums from 0."""

    num_classes: int
    norm: float
    cosine: float
    mean: float


def certify(num_classes: int) -> Certificate:
    """Prove the geometry for any number of classes without the matrix, in O(C).

    norm_j^2 = s_j^2 + sum_{i<j} r_i^2 = 1;  <p_i, p_j> = sum_{m<i} r_m^2 - s_i r_i = -1/k for every j > i;
    row sum = s_i - n r_i = 0.
    """
    num_classes = check_count("num_classes", num_classes, least=2)
    k = num_classes - 1
    s, r = coefficients(num_classes)
    below = torch.cat([r.new_zeros(1), (r * r).cumsum(0)])  # sum over m < j, for j = 0..k
    diagonal = torch.cat([s * s, s.new_zeros(1)])
    n = torch.arange(k, 0, -1, dtype=torch.float64)
    return Certificate(
        num_classes=num_classes,
        norm=(diagonal + below - 1).abs().max().item(),
        cosine=(k * (below[:-1] - s * r) + 1).abs().max().item(),
        mean=(s - n * r).abs().max().item(),
    )
