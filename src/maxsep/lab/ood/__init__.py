"""Out-of-distribution detection with trained runs: scores, metrics, and the record `detection.json`."""

from maxsep.lab.ood.evaluate import OODProtocol, covers, detect, ensure_detection, read_detection, read_outliers

__all__ = ["OODProtocol", "covers", "detect", "ensure_detection", "read_detection", "read_outliers"]
