"""What a trained run makes of images from outside its classes: scores, measures, and `detection.json`."""

from maxsep.lab.detection.runs import (
    FILE,
    Wish,
    covers,
    detect,
    ensure_detection,
    pick_device,
    read_detection,
    read_outliers,
)

__all__ = [
    "FILE",
    "Wish",
    "covers",
    "detect",
    "ensure_detection",
    "pick_device",
    "read_detection",
    "read_outliers",
]
