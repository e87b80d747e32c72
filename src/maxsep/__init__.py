"""Maximum class separation for any PyTorch classifier, in one fixed matrix and O(C) time."""

from maxsep.heads import MaxSeparation, MaxSeparationHead, check_head
from maxsep.ops import separate
from maxsep.simplex import simplex
from maxsep.surgery import attach, change_basis, fold, grow, load, save

__version__ = "0.1.0"

__all__ = [
    "MaxSeparation",
    "MaxSeparationHead",
    "attach",
    "change_basis",
    "check_head",
    "fold",
    "grow",
    "load",
    "save",
    "separate",
    "simplex",
]
