"""Operations on whole models: attach a head, fold it, add classes, go on without it, save and load."""

from maxsep.surgery.attach import attach, replace_classifier
from maxsep.surgery.fold import fold
from maxsep.surgery.grow import grow
from maxsep.surgery.locate import find_heads
from maxsep.surgery.plain_sgd import to_plain_sgd
from maxsep.surgery.save import load, save

__all__ = ["attach", "find_heads", "fold", "grow", "load", "replace_classifier", "save", "to_plain_sgd"]
