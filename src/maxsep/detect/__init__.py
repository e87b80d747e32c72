"""Telling known from unknown: scores (higher = more in-distribution), detectors, and the measures of both."""

from maxsep.detect.detector import Detector
from maxsep.detect.gather import Collected, collect
from maxsep.detect.logit_detector import LogitDetector
from maxsep.detect.logit_scores import energy, max_logit, max_softmax
from maxsep.detect.mahalanobis import MAGNITUDES, Mahalanobis
from maxsep.detect.mahalanobis_detector import MahalanobisDetector
from maxsep.detect.odin import ODIN
from maxsep.detect.open_set import oscr
from maxsep.detect.out_of_distribution import ood_metrics, threshold_at_tpr
from maxsep.detect.ranking import auroc, average_precision, fpr_at_tpr

__all__ = [
    "MAGNITUDES",
    "ODIN",
    "Collected",
    "Detector",
    "LogitDetector",
    "Mahalanobis",
    "MahalanobisDetector",
    "auroc",
    "average_precision",
    "collect",
    "energy",
    "fpr_at_tpr",
    "max_logit",
    "max_softmax",
    "ood_metrics",
    "oscr",
    "threshold_at_tpr",
]
