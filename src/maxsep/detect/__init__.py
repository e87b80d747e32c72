"""Detection of unknown inputs: scores (higher = more in-distribution), detectors over models, and metrics."""

from maxsep.detect.detectors import ODIN, Detector, LogitDetector
from maxsep.detect.mahalanobis import MAGNITUDES, Mahalanobis, MahalanobisDetector
from maxsep.detect.metrics import auroc, average_precision, fpr_at_tpr, ood_metrics, oscr, threshold_at_tpr
from maxsep.detect.scores import energy, max_logit, max_softmax

__all__ = [
    "MAGNITUDES",
    "ODIN",
    "Detector",
    "LogitDetector",
    "Mahalanobis",
    "MahalanobisDetector",
    "auroc",
    "average_precision",
    "energy",
    "fpr_at_tpr",
    "max_logit",
    "max_softmax",
    "ood_metrics",
    "oscr",
    "threshold_at_tpr",
]
