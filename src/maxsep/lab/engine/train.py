"""Train a spec: check it, lock its folder, start the processes, and show progress."""

from __future__ import annotations

import atexit
import functools
import signal
import sys
import time
import warnings
from collections.abc import Collection
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from maxsep import heads
from maxsep.lab import networks
from maxsep.lab.data import NORMALISATIONS, Dataset, Splits, augmentation, prepare, with_order
from maxsep.lab.engine.checkpoint import clean
from maxsep.lab.engine.evaluate import make_observer
from maxsep.lab.engine.losses import build_loss, loss_names
from maxsep.lab.engine.model import build_model, load_pretrained
from maxsep.lab.engine.optim import OPTIMISERS, learning_rate
from maxsep.lab.engine.processes import choose_strategy, count_nodes, end_group, is_helper
from maxsep.lab.engine.progress import Progress
from maxsep.lab.engine.trainer import DeadlineError, StopRequest, Trainer
from maxsep.lab.environment import pick_device
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec
from maxsep.packages import load_package

PRECISIONS = ("32-true", "64-true", "bf16-mixed")
_FOR_PRIORS = ("balanced_softmax", "logit_adjusted")
"""Losses that add log-priors to the logits, which are right where batches have the classes in that frequency."""


def train(
    spec: RunSpec,
    *,
    data_root: str | Path | None = None,
    runs: str | Path = "runs",
    execution: Execution | None = None,
    progress: bool = True,
    download: bool = False,
    deadline: float | None = None,
) -> Path:
    """Train a run to its end and return its folder; a finished run is returned at once, an interrupted one resumed.

    The run that it starts from (`spec.start_from`) is trained first, in the same folder of runs. On a CPU the result is
    bit-identical for the same spec, machine, versions, threads and `compile`, with or without interruptions.

    Args:
        spec: What to train.
        data_root: Folder of the datasets; by default $MAXSEP_DATA. The digits need none.
        runs: Folder in which the run's folder is created.
        execution: How to compute it; by default what suits the device.
        progress: Show a bar on a terminal, plain lines in a log; False is silent.
        download: Fetch a dataset that is missing into `data_root`.
        deadline: Stop at a resume point at this time of `time.monotonic`.

    Returns:
        The folder with `spec.json`, `metrics.jsonl`, `weights.safetensors`, `result.json` and their sums.

    Raises:
        ValueError: The spec or the execution names something unknown, or the folder holds another run.
        BlockingIOError: Another process is training the run.
        NonFiniteError: The loss became infinite or not a number. This, and any other error once training has begun,
            leaves a `failure.json` in the folder until the run is finished.
        DeadlineError: The deadline has passed; the state was saved.
        SystemExit: 143 or 130, when a SIGTERM or SIGINT came; the state was saved, and the same call resumes.

    >>> import tempfile
    >>> folder = train(RunSpec(epochs=1), runs=tempfile.mkdtemp(), progress=False)
    >>> sorted(path.name for path in folder.iterdir())
    ['MANIFEST.json', 'metrics.jsonl', 'result.json', 'spec.json', 'weights.safetensors']
    """
    run, execution = Run(Path(runs) / spec.name), execution or Execution()
    run.check_spec(spec)
    if run.state == "finished":
        return run.folder
    check_names(spec)
    fabric = make_fabric(spec, execution)
    # torchrun has started one process for each device; the first of them holds the lock
    with nullcontext() if is_helper() else run.lock():
        if spec.start_from is not None:
            how: dict[str, Any] = {"data_root": data_root, "runs": runs, "execution": execution}
            train(spec.start_from, progress=progress, download=download, deadline=deadline, **how)
        # Fabric looks into the arguments of what it launches and refuses frozen dataclasses; a partial hides them
        signum = fabric.launch(functools.partial(_run, spec, execution, run, data_root, progress, download, deadline))
    if signum == signal.SIGALRM and not (run.folder / "result.json").is_file():
        raise DeadlineError(f"the time for {spec.name} is over; the same call resumes it.")
    if signum and signum != signal.SIGALRM:
        raise SystemExit(128 + signum)
    return run.folder


def _run(
    spec: RunSpec,
    execution: Execution,
    run: Run,
    root: str | Path | None,
    progress: bool,
    download: bool,
    deadline: float | None,
    fabric: Any,
) -> int:
    """Train in one process, or in each of several; return 0 or the signal that asked for a stop."""
    began = time.perf_counter()
    if fabric.world_size > 1:
        atexit.register(end_group)
    with ExitStack() as stack:
        on_cpu = fabric.device.type == "cpu"
        if threads := execution.threads or (1 if on_cpu and spec.network == "mlp" else None):
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)
        stack.enter_context(torch.random.fork_rng(devices=[] if on_cpu else [fabric.device.index]))
        stop = stack.enter_context(StopRequest(deadline))
        bar = stack.enter_context(Progress(spec, sys.stderr if progress and fabric.is_global_zero else None))
        # all that can be wrong with a spec or its data shows here, before there is a folder
        splits = prepare(spec, root, download=download, progress=bar.download)
        if fabric.is_global_zero and with_order([spec], root) != [spec]:  # recorded runs of another order stay silent
            warnings.warn(
                f"the images of {spec.dataset} are in the official order: without data_order='official' the report "
                "takes this run for an earlier draw.",
                stacklevel=1,  # Fabric, not the caller of `train`, calls this
            )
        execution = execution.resolve(fabric.device.type, fabric.world_size)
        trainer = Trainer(fabric, spec, execution, splits, run, bar, stop)
        trainer.observer = make_observer(spec, root, run.folder, trainer.data)
        trainer.began = began
        if fabric.is_global_zero:
            run.begin(spec)
            clean(run.resume)
        fabric.barrier()
        if run.state == "finished":  # by another process, before this one had the lock
            return stop.signum
        if spec.precision == "64-true":
            # Fabric converts outputs to the default precision: the loss, too, is to be computed in double
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float64)
        try:
            trainer.resume()
            fabric.barrier()
            # a signal that came too late for this run still asks the caller to stop
            return trainer.fit() or stop.signum
        except Exception as error:
            if fabric.is_global_zero:
                run.record_failure(spec, error)
            raise


def make_fabric(spec: RunSpec, execution: Execution) -> Any:
    """Check an execution and build its Fabric.

    Several devices train with DDP or FSDP2: under `torchrun` with the processes that it has started, on one machine or
    several with a common folder of runs; otherwise with processes started here, for which the calling script needs the
    usual `if __name__ == "__main__"` guard.
    """
    device = pick_device(execution.device).type
    check_precision(spec.precision)
    if device == "cuda" and execution.devices > torch.cuda.device_count():
        raise ValueError(f"devices must be at most {torch.cuda.device_count()}, got {execution.devices}.")
    if execution.cuda_graph and (device != "cuda" or execution.devices * count_nodes() > 1):
        raise ValueError(f"cuda_graph needs one CUDA device, got {execution.devices} of {device}.")
    if device == "cuda":
        torch.backends.cudnn.benchmark = True
    if execution.sharded and spec.features_at:
        raise ValueError("features_at needs whole weights on the first process: train without sharded.")
    processes = {"devices": execution.devices, "num_nodes": count_nodes(), "strategy": choose_strategy(execution)}
    fabric, number = load_package("lightning_fabric", "lab"), {"precision": spec.precision}
    if spec.precision == "64-true":  # by name it is refused for sharded weights
        number = {"plugins": load_package("lightning_fabric.plugins", "lab").DoublePrecision()}
    return fabric.Fabric(accelerator=device, **number, **processes)


def dry_run(
    spec: RunSpec, execution: Execution, data_root: str | Path | None = None, *, download: bool = False
) -> Splits:
    """Read a run's data, build its network and loss, pass one image through, and return the data; writes nothing."""
    check_names(spec)
    make_fabric(spec, execution)
    splits = prepare(spec, data_root, download=download)
    images = splits.train
    build_loss(spec, images.class_counts)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        network = build_model(spec, images.shape, images.num_classes, images.class_counts).eval()
        load_pretrained(spec, network, images.shape, execution.weights)
        try:
            network(images.images[:1].float())
        except (RuntimeError, AssertionError) as error:  # a kernel larger than the image, patches that do not fit
            _, height, width = images.shape
            raise ValueError(f"network {spec.network!r} does not take images of {width} x {height}: {error}") from error
    return splits


def check_precision(name: str) -> None:
    """Raise if there is no such precision."""
    _check("precision", name, PRECISIONS)


def check_names(spec: RunSpec) -> None:
    """Raise if a spec names an unknown dataset, network, head, loss, optimiser, schedule and so on.

    Whether a folder of images is there, or a library has a network of that name, shows when it is read or built.
    """
    dataset = Dataset.parse(spec.dataset)
    augmentation(spec.augmentation)
    _check("normalisation", spec.normalisation, NORMALISATIONS)
    networks.check_name(spec.network, **dict(spec.network_options))
    _check("head", spec.head, heads.names())
    _check("loss", spec.loss, loss_names())
    _check("optimiser", spec.optimiser, OPTIMISERS)
    learning_rate(spec, 0)  # its options are checked with its name
    if spec.features_at and dataset.open_set is None:
        raise ValueError(f"features_at needs an open-set split such as osr_cifar10_0, got {spec.dataset!r}.")
    if spec.loss == "ldam" and "cosine" not in spec.head:
        cosines = ", ".join(name for name in heads.names() if "cosine" in name)
        raise ValueError(f"the loss ldam needs a head with cosine logits ({cosines}), got {spec.head!r}.")
    if spec.loss in _FOR_PRIORS and spec.sampler == "class_balanced":
        warnings.warn(
            f"the loss {spec.loss} and the sampler class_balanced both correct for the frequency of classes: together "
            "they correct twice, in favour of rare classes. Use one of the two.",
            stacklevel=2,
        )


def _check(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}. Known: {', '.join(known)}.")
