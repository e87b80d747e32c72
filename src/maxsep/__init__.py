"""Maximum class separation for any PyTorch classifier, in one fixed matrix and O(C) time."""

from maxsep.heads import MaxSeparation, MaxSeparationHead
from maxsep.ops import separate
from maxsep.simplex import simplex
from maxsep.surgery import attach, fold, grow, load, save

__version__ = "0.1.0"

__all__ = ["MaxSeparation", "MaxSeparationHead", "attach", "fold", "grow", "load", "save", "separate", "simplex"]
