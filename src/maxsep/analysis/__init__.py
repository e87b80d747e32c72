"""Measures of a trained classifier: geometry of its features, calibration of its probabilities."""

from maxsep.analysis.calibration import expected_calibration_error
from maxsep.analysis.fisher import angular_fisher_score

__all__ = ["angular_fisher_score", "expected_calibration_error"]
