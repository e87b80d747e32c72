"""Measures of a trained classifier: geometry of its features, calibration of its probabilities, accuracy by shot."""

from maxsep.analysis.angles import pairwise_angles
from maxsep.analysis.calibration import expected_calibration_error
from maxsep.analysis.collapse import neural_collapse
from maxsep.analysis.fisher import angular_fisher_score
from maxsep.analysis.separation import class_mean_separation
from maxsep.analysis.shots import accuracy_by_shot, per_class_accuracy, shot_groups

__all__ = [
    "accuracy_by_shot",
    "angular_fisher_score",
    "class_mean_separation",
    "expected_calibration_error",
    "neural_collapse",
    "pairwise_angles",
    "per_class_accuracy",
    "shot_groups",
]
