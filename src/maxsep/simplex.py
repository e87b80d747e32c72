r"""The matrix: its two coefficient vectors, its dense form, and certificates that need neither.

Legend (the paper's symbols): C classes, k = C - 1 outputs, P the (k, C) matrix whose columns are the class vectors,
row i = 0..k-1, n = k - i the number of classes to the right of the diagonal.

The paper defines P by recursion,

    P_1 = [1, -1],    P_k = [[1, -1/k 1^T], [0, sqrt(1 - 1/k^2) P_{k-1}]].

Unrolled, row i is multiplied by the product over m = n+1..k of sqrt(1 - 1/m^2), which telescopes, so that

    P[i, i] = s_i = sqrt(C/k) sqrt(n / (n+1)),    P[i, j] = -r_i = -s_i / n for j > i,    0 for j < i.

P is sqrt(C/k) times a Helmert matrix with its rows and columns reversed; softmax(P^T x) is an inverse isometric
log-ratio transform (Egozcue et al. 2003), and Stan's sum-to-zero vector is the same map.

The second basis is that simplex turned: the first k columns of a Householder reflection, with a = sqrt(C/k),

    P_H[i, j] = a (delta_ij - c) for j < k,    P_H[i, k] = -a d,        c = 1 / (C + sqrt C),  d = 1 / sqrt C.

P_H = Q P with the orthogonal Q = (k/C) P_H P^T: the same angles and the same logits after turning what comes before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from maxsep.checks import Basis, check_basis, check_num_classes

__all__ = ["Certificate", "certify", "coefficients", "reflection", "simplex"]


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

    >>> s, r = coefficients(3)
    >>> s.tolist(), r.tolist()
    ([1.0, 0.8660254037844386], [0.5, 0.8660254037844386])
    """
    k = num_classes - 1
    start, stop = rows or (0, k)
    n = torch.arange(k - start, k - stop, -1, dtype=torch.float64, device=device)
    s = (n / (n + 1) * (num_classes / k)).sqrt()
    return s.to(dtype), (s / n).to(dtype)


def reflection(num_classes: int) -> tuple[float, float, float]:
    """Return a, c and d of the Householder basis: three numbers are all of it.

    c is written such that nothing cancels: (1 - 1 / sqrt C) / k is the same number with fewer digits.

    >>> reflection(4)
    (1.1547005383792515, 0.16666666666666666, 0.5)
    """
    root = math.sqrt(num_classes)
    return math.sqrt(num_classes / (num_classes - 1)), 1 / (num_classes + root), 1 / root


def simplex(
    num_classes: int,
    *,
    basis: Basis = "recursive",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Build the matrix, shape (C-1, C): unit columns, pairwise cosine -1/(C-1), zero mean.

    In the basis `recursive` column order and signs are those of the paper's recursion, here from its closed form;
    `householder` is the same simplex turned. Both take O(C^2), the size of the result. Training and inference never
    need it: `separate` applies it in O(C) per sample.

    Pitfall: at 100,000 classes the dense matrix has 40 GB; ask for it only to look at it.

    >>> simplex(3)
    tensor([[ 1.0000, -0.5000, -0.5000],
            [ 0.0000,  0.8660, -0.8660]])
    >>> simplex(3, basis="householder")
    tensor([[ 0.9659, -0.2588, -0.7071],
            [-0.2588,  0.9659, -0.7071]])
    """
    num_classes = check_num_classes(num_classes)
    if not dtype.is_floating_point:
        raise TypeError(f"dtype must be a real floating-point type, got {dtype}. Leave it out for torch.float32.")
    build = _reflected if check_basis(basis) == "householder" else _recursive
    try:
        return build(num_classes, dtype, device)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # a GPU's own error says enough, and others catch it by its type
            raise
        size = num_classes * (num_classes - 1) * dtype.itemsize
        raise MemoryError(
            f"the dense matrix of {num_classes:,} classes has {size / 1e9:,.0f} GB, which cannot be had here. "
            "maxsep.separate(x) applies it in O(C) without building it, and MaxSeparationHead uses that."
        ) from error


def _recursive(num_classes: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    s, r = coefficients(num_classes, dtype=dtype, device=device)
    matrix = (-r).unsqueeze(1).expand(-1, num_classes).triu(1)
    matrix.diagonal().copy_(s)
    return matrix + 0.0  # turns the -0.0 that triu leaves below the diagonal into 0.0


def _reflected(num_classes: int, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    a, c, d = reflection(num_classes)
    matrix = torch.full((num_classes - 1, num_classes), -a * c, dtype=dtype, device=device)
    matrix.diagonal().fill_(a * (1 - c))
    matrix[:, -1] = -a * d
    return matrix


@dataclass(frozen=True)
class Certificate:
    """How far the coefficients of one size are from an exact simplex; every entry is a largest deviation."""

    num_classes: int
    norm: float
    """Of a squared column norm from 1."""
    cosine: float
    """Of a pairwise cosine from -1/(C-1), in units of 1/(C-1)."""
    mean: float
    """Of a row sum from 0."""


def certify(num_classes: int, *, basis: Basis = "recursive") -> Certificate:
    """Prove the geometry for any number of classes without the matrix, in O(C), in O(1) for `householder`.

    norm_j^2 = s_j^2 + sum_{i<j} r_i^2 = 1;  <p_i, p_j> = sum_{m<i} r_m^2 - s_i r_i = -1/k for every j > i;
    row sum = s_i - n r_i = 0.

    >>> certify(1000).norm < 1e-14
    True
    """
    num_classes = check_num_classes(num_classes)
    if check_basis(basis) == "householder":
        return _certify_reflection(num_classes)
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


def _certify_reflection(num_classes: int) -> Certificate:
    """Columns are of two kinds, the first k and the last: two norms, two cosines (one at k = 1), one row sum."""
    k = num_classes - 1
    a, c, d = reflection(num_classes)
    first, last = a * a * (1 - 2 * c + k * c * c), a * a * k * d * d
    among, between = a * a * (k * c * c - 2 * c), -a * a * d * (1 - k * c)
    return Certificate(
        num_classes=num_classes,
        norm=max(abs(first - 1), abs(last - 1)),
        cosine=max(abs(k * cosine + 1) for cosine in ((among, between) if k > 1 else (between,))),
        mean=abs(a * (1 - k * c - d)),
    )
