"""Losses for long-tailed data and for very many classes, class weights and mixup."""

from maxsep.losses.fused import fused_cross_entropy, linear_logsumexp
from maxsep.losses.long_tail import (
    BalancedSoftmaxLoss,
    LabelAwareSmoothingLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    effective_number_weights,
)
from maxsep.losses.mixup import mixup

__all__ = [
    "BalancedSoftmaxLoss",
    "LDAMLoss",
    "LabelAwareSmoothingLoss",
    "LogitAdjustedLoss",
    "effective_number_weights",
    "fused_cross_entropy",
    "linear_logsumexp",
    "mixup",
]
