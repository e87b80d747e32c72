"""Trained runs in use: pictures in, classes out, or "unknown"; and the same from a folder that can be given away."""

from maxsep.lab.serving.classifier import Classifier, is_export, open_classifier
from maxsep.lab.serving.export import FORMATS, export
from maxsep.lab.serving.exported import evaluate_export, export_data
from maxsep.lab.serving.files import Found, Unreadable, find_images
from maxsep.lab.serving.predictions import Prediction, predictions

__all__ = [
    "FORMATS",
    "Classifier",
    "Found",
    "Prediction",
    "Unreadable",
    "evaluate_export",
    "export",
    "export_data",
    "find_images",
    "is_export",
    "open_classifier",
    "predictions",
]
