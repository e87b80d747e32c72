"""A second stage of training: the weights it starts from, and what of them stays fixed."""

from __future__ import annotations

from pathlib import Path

from maxsep.lab.engine.model import Pipeline
from maxsep.lab.networks import Network
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec


def take_over(spec: RunSpec, network: Network, runs: Path) -> None:
    """Load the weights of the stage before and freeze the backbone, as the spec says; a first stage is left alone.

    Factors of logits that the stage before did not have keep their start. The weights are those of the last epoch:
    the best epoch would be a choice by test data.

    Args:
        spec: The stage that begins.
        network: Its network, as `build_model` made it.
        runs: The folder of run folders, where the stage before is finished.
    """
    if spec.start_from is None:
        return
    found = Run(runs / spec.start_from.name).weights()
    if spec.logit_scaling and not spec.start_from.logit_scaling:
        found = {_below(name): value for name, value in found.items()}
        own = network.state_dict()
        found |= {name: own[name] for name in ("head.scale", "head._extra_state")}
    network.load_state_dict(found)
    if spec.backbone != "trained":
        trained = set(network.head.parameters())
        for parameter in network.parameters():
            parameter.requires_grad_(parameter in trained)


def rest(spec: RunSpec, pipeline: Pipeline) -> None:
    """Keep a frozen backbone in evaluation mode, unless its batch normalisation shall follow the new batches."""
    pipeline.rests = spec.backbone == "frozen"


def _below(name: str) -> str:
    """A parameter's name after a head was put into another one."""
    return "head." + name if name.startswith("head.") else name
