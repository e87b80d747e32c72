"""A trained factor for every logit, on top of any head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from maxsep.checks import Basis
from maxsep.heads.base import Head

__all__ = ["LogitScaledHead"]


class LogitScaledHead(Head):
    """Learnable weight scaling (Kang et al. 2020): logits_j = scale_j * head(x)_j, with scale started at 1.

    A second stage of training for long tails: the head was trained on the data as they are, and the factors (with the
    head or without) are then trained on balanced batches.

    Args:
        head: Any head of this package.

    Pitfall: it is no name of the registry, because it needs a head to stand on.

    >>> from maxsep.heads import MaxSeparationHead
    >>> head = LogitScaledHead(MaxSeparationHead(64, 10))
    >>> [name for name, _ in head.named_parameters()]
    ['scale', 'head.weight', 'head.bias']
    """

    def __init__(self, head: Head) -> None:
        if not isinstance(head, Head):
            raise TypeError(f"logits of a head can be scaled, got {type(head).__name__}. Pass a head of maxsep.heads.")
        super().__init__(head.in_features, head.num_classes, head.radius)
        like = next(head.parameters(), torch.empty(0))
        self.head = head
        self.scale = nn.Parameter(torch.ones(self.num_classes, device=like.device, dtype=like.dtype))

    @property
    def basis(self) -> Basis:
        """The basis of the head below."""
        return self.head.basis

    def reset_parameters(self) -> None:
        """Put the factors back to 1; the head keeps what it has learned."""
        nn.init.ones_(self.scale)

    def features(self, x: Tensor) -> Tensor:
        """Return the features of the head below."""
        return self.head.features(x)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of x."""
        logits: Tensor = self.head(x)
        return logits * self.scale

    def class_vectors(self) -> Tensor:
        """Return the class vectors of the head below, each times its factor."""
        return self.head.class_vectors() * self.scale[:, None]

    def linear_form(self) -> tuple[Tensor, Tensor | None]:
        """Return the rows of the head below, each times its factor."""
        weight, bias = self.head.linear_form()
        return weight * self.scale[:, None], None if bias is None else bias * self.scale

    @torch.no_grad()
    def folded(self) -> nn.Module:
        """Return the plain form of the head below with the factors in its last layer."""
        folded = self.head.folded()
        last = folded[-1] if isinstance(folded, nn.Sequential) else folded
        assert isinstance(last, nn.Linear | nn.RMSNorm)
        last.weight.mul_(self.scale[:, None] if last.weight.dim() == 2 else self.scale)
        if isinstance(last, nn.Linear) and last.bias is not None:
            last.bias.mul_(self.scale)
        return folded
