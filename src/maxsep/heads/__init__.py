"""Heads: the paper's, its controls and ablations, under one registry of names."""

from maxsep.heads import ablations  # noqa: F401  # registers its heads
from maxsep.heads.base import Head
from maxsep.heads.class_parallel import ClassParallelHead
from maxsep.heads.controls import ControlHead, PlainHead, ScaledHead
from maxsep.heads.cosine import CosineHead
from maxsep.heads.etf import ETFHead
from maxsep.heads.maxsep import MaxSeparation, MaxSeparationHead
from maxsep.heads.registry import build, names, option_defaults, register

__all__ = [
    "ClassParallelHead",
    "ControlHead",
    "CosineHead",
    "ETFHead",
    "Head",
    "MaxSeparation",
    "MaxSeparationHead",
    "PlainHead",
    "ScaledHead",
    "build",
    "names",
    "option_defaults",
    "register",
]
