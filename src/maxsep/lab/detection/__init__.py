"""What a trained run makes of images from outside its classes: scores, measures, and `detection.json`."""

from maxsep.lab.detection.exports import detect_export
from maxsep.lab.detection.judge import Wish, read_outliers
from maxsep.lab.detection.runs import FILE, covers, detect, ensure_detection, read_detection

__all__ = [
    "FILE",
    "Wish",
    "covers",
    "detect",
    "detect_export",
    "ensure_detection",
    "read_detection",
    "read_outliers",
]
