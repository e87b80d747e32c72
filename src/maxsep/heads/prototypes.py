"""Class vectors by optimisation, as Mettes et al. (2019) find them: the comparison for the closed form."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from maxsep.checks import check_count, check_num_classes

__all__ = ["optimise_prototypes", "orthonormal_rows"]


@lru_cache(maxsize=16)
def optimise_prototypes(
    num_classes: int,
    width: int,
    *,
    iterations: int = 10_000,
    learning_rate: float = 0.1,
    seed: int = 300,
) -> Tensor:
    """Spread unit vectors, (num_classes, width), by gradient descent on the mean of each one's largest cosine.

    Plain gradient descent with a normalisation after each step: the original makes a new optimiser at every step, so
    its momentum never acts. At 100 classes in 99 dimensions the pairwise angles keep a spread of about one degree.

    The result is shared between calls: clone it before changing it.

    >>> vectors = optimise_prototypes(3, 2, iterations=2000)
    >>> (vectors @ vectors.T)[0, 1].round(decimals=1)
    tensor(-0.5000)
    """
    check_num_classes(num_classes)
    check_count("width", width)
    check_count("iterations", iterations)
    generator = torch.Generator("cpu").manual_seed(seed)
    vectors = F.normalize(torch.randn(num_classes, width, generator=generator, device="cpu"), dim=1)
    with torch.no_grad(), torch.device("cpu"):
        for _ in range(iterations):
            cosines = (vectors @ vectors.T).fill_diagonal_(-2)
            nearest = cosines.argmax(1)
            # d/dv_i of sum_i <v_i, v_nearest(i)>: its own nearest, and everyone whose nearest it is.
            gradient = vectors[nearest].index_add(0, nearest, vectors)
            vectors = F.normalize(vectors - learning_rate / num_classes * gradient, dim=1)
    return vectors


def orthonormal_rows(count: int, width: int, seed: int = 0) -> Tensor:
    """Draw `count` directions of R^width at right angles, (count, width), uniformly among all such: float64.

    They are a function of the arguments alone, up to rounding the same on every machine; fewer of the same width and
    seed are the first of more.

    >>> rows = orthonormal_rows(2, 5)
    >>> torch.allclose(rows @ rows.T, torch.eye(2, dtype=torch.float64))
    True
    >>> torch.allclose(orthonormal_rows(3, 5)[:2], rows)
    True
    """
    generator = torch.Generator("cpu").manual_seed(seed)  # whatever device is the default at the moment
    # row by row: how many numbers are drawn at once can change the last of them
    drawn = [torch.randn(width, generator=generator, dtype=torch.float64, device="cpu") for _ in range(count)]
    columns, upper = torch.linalg.qr(torch.stack(drawn, dim=1))
    # the signs of a QR decomposition are the library's choice; with a positive diagonal there is one only
    rows: Tensor = (columns * upper.diagonal().sign()).T.contiguous()
    return rows
