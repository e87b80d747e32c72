"""Measures of a trained classifier: geometry of its features, calibration, accuracy of frequent and rare classes."""

from maxsep.analysis.accuracy import accuracy_by_shot, expected_calibration_error, shot_groups
from maxsep.analysis.geometry import angular_fisher_score, neural_collapse

__all__ = ["accuracy_by_shot", "angular_fisher_score", "expected_calibration_error", "neural_collapse", "shot_groups"]
