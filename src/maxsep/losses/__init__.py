"""Losses for long-tailed data and for very many classes, and the class weights and mixed batches that go with them."""

from maxsep.losses.balanced_softmax import BalancedSoftmaxLoss
from maxsep.losses.effective_number import effective_number_weights
from maxsep.losses.fused_cross_entropy import fused_cross_entropy
from maxsep.losses.label_aware_smoothing import LabelAwareSmoothingLoss
from maxsep.losses.ldam import LDAMLoss
from maxsep.losses.logit_adjusted import LogitAdjustedLoss
from maxsep.losses.mixup import MixedBatch, mixup
from maxsep.losses.squared_cosine import SquaredCosineLoss

__all__ = [
    "BalancedSoftmaxLoss",
    "LDAMLoss",
    "LabelAwareSmoothingLoss",
    "LogitAdjustedLoss",
    "MixedBatch",
    "SquaredCosineLoss",
    "effective_number_weights",
    "fused_cross_entropy",
    "mixup",
]
