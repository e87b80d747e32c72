"""Surgery on whole models: put the head in, take it out, let it grow, keep it in a file."""

from maxsep.surgery.attach import attach, replace_classifier
from maxsep.surgery.convert import HeadRecord
from maxsep.surgery.fold import fold
from maxsep.surgery.grow import grow
from maxsep.surgery.locate import find_heads, locate
from maxsep.surgery.optimiser_state import carry_optimiser_state
from maxsep.surgery.persist import Metadata, load, save

__all__ = [
    "HeadRecord",
    "Metadata",
    "attach",
    "carry_optimiser_state",
    "find_heads",
    "fold",
    "grow",
    "load",
    "locate",
    "replace_classifier",
    "save",
]
