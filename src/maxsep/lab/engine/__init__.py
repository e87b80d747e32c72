"""One training loop on Lightning Fabric, with exact resume, and the record that every run leaves."""

from maxsep.lab.engine.checkpoint import CheckpointError
from maxsep.lab.engine.loop import train
from maxsep.lab.engine.losses import loss_names, register_loss
from maxsep.lab.engine.nonfinite import NonFiniteError
from maxsep.lab.engine.runs import evaluate, load_model

__all__ = [
    "CheckpointError",
    "NonFiniteError",
    "evaluate",
    "load_model",
    "loss_names",
    "register_loss",
    "train",
]
