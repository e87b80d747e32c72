"""One training loop on Lightning Fabric, with exact resume, and the record that every run leaves."""

from maxsep.lab.engine.checkpoint import CheckpointError
from maxsep.lab.engine.evaluate import evaluate, load_model
from maxsep.lab.engine.losses import loss_names
from maxsep.lab.engine.step import NonFiniteError
from maxsep.lab.engine.train import train

__all__ = ["CheckpointError", "NonFiniteError", "evaluate", "load_model", "loss_names", "train"]
