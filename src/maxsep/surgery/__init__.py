"""Operations on whole models: attach a head, fold it, add classes, save and load."""

from maxsep.surgery.attach import attach, replace_classifier
from maxsep.surgery.fold import fold
from maxsep.surgery.grow import grow
from maxsep.surgery.locate import find_heads
from maxsep.surgery.save import load, save

__all__ = ["attach", "find_heads", "fold", "grow", "load", "replace_classifier", "save"]
