"""From an `Execution` to Lightning Fabric: which device, how many processes, which precision."""

from __future__ import annotations

import os
from typing import Any

import torch

from maxsep.lab.environment import pick_device
from maxsep.lab.spec import Execution, RunSpec

PRECISIONS = ("16-mixed", "32-true", "64-true", "bf16-mixed", "bf16-true")
EXTRA = {
    "checkpoint_steps": "steps between resume points inside an epoch",
    "compile_mode": "mode of torch.compile",
    "compile_options": "options of torch.compile to turn on, joined by commas; not beside a mode",
    "threads": "threads of the CPU",
}
"""What `Execution.extra` may hold."""
_OWN_GRAPHS = ("reduce-overhead", "max-autotune")


def make_fabric(spec: RunSpec, execution: Execution) -> Any:
    """Check an execution and build the Fabric that carries it out.

    Several devices train with DDP: under `torchrun` with the processes that it has started, otherwise with
    processes started here, for which the calling script needs the usual `if __name__ == "__main__"` guard.

    Raises:
        ValueError: The device, the precision or an option is unknown or not available, or options exclude each
            other; before anything is trained.
        ImportError: Lightning Fabric is not installed.
    """
    device = pick_device(execution.device).type
    _check(spec, execution, device)
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise ImportError('training needs Lightning Fabric. Install it with: pip install "maxsep[lab]"') from error
    if device == "cuda":
        torch.backends.cudnn.benchmark = True
    strategy = "auto"
    if execution.devices > 1:
        strategy = "ddp" if "TORCHELASTIC_RUN_ID" in os.environ else "ddp_spawn"
    return Fabric(accelerator=device, devices=execution.devices, strategy=strategy, precision=spec.precision)


def check_precision(name: str) -> None:
    """Raise if there is no such precision.

    >>> check_precision("fp8")
    Traceback (most recent call last):
        ...
    ValueError: unknown precision 'fp8'. Known: 16-mixed, 32-true, 64-true, bf16-mixed, bf16-true.
    """
    if name not in PRECISIONS:
        raise ValueError(f"unknown precision {name!r}. Known: {', '.join(PRECISIONS)}.")


def _check(spec: RunSpec, execution: Execution, device: str) -> None:
    check_precision(spec.precision)
    if spec.precision == "16-mixed" and device == "cpu":
        raise ValueError(
            "'16-mixed' needs a CUDA device: on a CPU it would silently be bfloat16. Use 'bf16-mixed' or '32-true'."
        )
    if execution.devices < 1 or execution.checkpoint_every < 1:
        raise ValueError(
            "devices and checkpoint_every must be at least 1, got "
            f"{execution.devices} and {execution.checkpoint_every}."
        )
    if device == "cuda" and execution.devices > torch.cuda.device_count():
        raise ValueError(
            f"{execution.devices} devices were asked for, torch finds {torch.cuda.device_count()}. Ask for fewer."
        )
    if unknown := sorted(set(dict(execution.extra)) - set(EXTRA)):
        raise ValueError(f"unknown execution options: {', '.join(unknown)}. Known: {', '.join(EXTRA)}.")
    if {"compile_mode", "compile_options"} <= set(dict(execution.extra)):
        raise ValueError("torch.compile takes compile_mode or compile_options, got both. Leave one of them out.")
    if execution.cuda_graph:
        _check_graph(spec, execution, device)


def _check_graph(spec: RunSpec, execution: Execution, device: str) -> None:
    if device != "cuda":
        raise ValueError("cuda_graph needs a CUDA device, and this run is on the CPU. Leave it off.")
    if execution.devices > 1:
        raise ValueError(f"cuda_graph works on one device, got {execution.devices}. Leave it off or use one device.")
    if (mode := dict(execution.extra).get("compile_mode")) in _OWN_GRAPHS:
        raise ValueError(
            f"compile_mode {mode!r} captures graphs of its own, which cuda_graph cannot contain. "
            "Use 'max-autotune-no-cudagraphs' or leave one of the two off."
        )
    if spec.precision == "16-mixed":
        raise ValueError(
            "cuda_graph cannot scale half-precision gradients ('16-mixed'). Use 'bf16-mixed' or leave it off."
        )
