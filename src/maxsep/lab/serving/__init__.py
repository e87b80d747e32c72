"""Trained runs in use: pictures in, classes out, or "unknown"; and the same from a folder that can be given away."""

from maxsep.lab.serving.classifier import Classifier, open_classifier
from maxsep.lab.serving.export import FORMATS, export
from maxsep.lab.serving.files import Found, Unreadable, find_images
from maxsep.lab.serving.predictions import Prediction, predictions

__all__ = [
    "FORMATS",
    "Classifier",
    "Found",
    "Prediction",
    "Unreadable",
    "export",
    "find_images",
    "open_classifier",
    "predictions",
]
