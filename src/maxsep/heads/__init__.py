"""Heads: the paper's, and the controls that every comparison carries, under one registry of names."""

from maxsep.heads.base import Head
from maxsep.heads.class_parallel import ClassParallelHead
from maxsep.heads.contract import HeadContractError, check_head
from maxsep.heads.controls import CentredHead, PlainHead, ScaledHead, TwinHead
from maxsep.heads.cosine import CentredCosineHead, CosineHead, CosineMaxSeparationHead, MaxSeparationCosineHead
from maxsep.heads.fixed import HPNHead
from maxsep.heads.maxsep import MaxSeparation, MaxSeparationHead
from maxsep.heads.on_features import ETFHead
from maxsep.heads.prototypes import optimise_prototypes
from maxsep.heads.registry import build, names, option_defaults, register
from maxsep.heads.scaling import LogitScaledHead
from maxsep.heads.trained import ExtraLayerHead, LearnableMatrixHead

__all__ = [
    "CentredCosineHead",
    "CentredHead",
    "ClassParallelHead",
    "CosineHead",
    "CosineMaxSeparationHead",
    "ETFHead",
    "ExtraLayerHead",
    "HPNHead",
    "Head",
    "HeadContractError",
    "LearnableMatrixHead",
    "LogitScaledHead",
    "MaxSeparation",
    "MaxSeparationCosineHead",
    "MaxSeparationHead",
    "PlainHead",
    "ScaledHead",
    "TwinHead",
    "build",
    "check_head",
    "names",
    "optimise_prototypes",
    "option_defaults",
    "register",
]
