"""Train a spec: the one entrance to the engine."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch

from maxsep.lab.data import Splits, prepare
from maxsep.lab.engine.assemble import assemble
from maxsep.lab.engine.checkpoint import clean
from maxsep.lab.engine.launch import make_fabric
from maxsep.lab.engine.names import check_names
from maxsep.lab.engine.observer import Observer, make_observer
from maxsep.lab.engine.progress import choose_progress
from maxsep.lab.engine.stop import StopRequest
from maxsep.lab.engine.trainer import Trainer
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

_DEFAULT = Execution()


def train(
    spec: RunSpec,
    *,
    data_root: str | Path | None = None,
    runs: str | Path = "runs",
    execution: Execution = _DEFAULT,
    progress: bool = True,
    download: bool = False,
) -> Path:
    """Train a run to its end and give its folder; a finished run is returned at once, a broken one resumed.

    A run that starts from another one (`spec.start_from`) has that one trained first, in the same folder of runs.

    On the CPU the result is bit-identical for the same spec, machine, versions, number of threads and `compile`
    setting, with or without interruptions. At most the time since the last resume point is lost.

    Args:
        spec: What to train.
        data_root: Folder of the datasets; by default $MAXSEP_DATA. The digits need none.
        runs: Folder in which the run's folder is created.
        execution: How to compute it.
        progress: Show a bar on a terminal, plain lines in a log; False is silent.
        download: Fetch a dataset that is missing into `data_root`.

    Returns:
        The folder with `spec.json`, `metrics.jsonl`, `weights.safetensors` and `result.json`.

    Raises:
        ValueError: The spec or the execution names something unknown, or the folder holds another run. Nothing was
            written.
        NonFiniteError: The loss became infinite or not a number. This, and any other error once training has begun,
            leaves a `failure.json` in the folder until the run is finished.
        SystemExit: 143 or 130, when a SIGTERM or SIGINT came; the state was saved, and the same call goes on.

    >>> import tempfile
    >>> folder = train(RunSpec(epochs=1), runs=tempfile.mkdtemp(), progress=False)
    >>> sorted(path.name for path in folder.iterdir())
    ['metrics.jsonl', 'result.json', 'spec.json', 'weights.safetensors']
    """
    run = Run(Path(runs) / spec.name)
    run.check_spec(spec)
    if run.state == "finished":
        return run.folder
    check_names(spec)
    fabric = make_fabric(spec, execution)
    # the processes that torchrun starts all come here; one of them holds the lock
    with run.lock() if os.environ.get("RANK", "0") == "0" else nullcontext():
        if spec.start_from is not None:
            first = spec.start_from
            train(first, data_root=data_root, runs=runs, execution=execution, progress=progress, download=download)
        load = functools.partial(prepare, spec, data_root, download=download)
        watch = functools.partial(make_observer, spec, data_root, run.folder)
        # Fabric looks into the arguments of what it launches and refuses frozen dataclasses; a partial hides them
        signum = fabric.launch(functools.partial(_run, spec, execution, run, load, watch, progress))
    if signum:
        raise SystemExit(128 + signum)
    return run.folder


def _run(
    spec: RunSpec,
    execution: Execution,
    run: Run,
    load: Callable[..., Splits],
    watch: Callable[[Splits], Observer | None],
    progress: bool,
    fabric: Any,
) -> int:
    """Train in one process; with several, each calls this."""
    with ExitStack() as stack:
        if threads := dict(execution.extra).get("threads"):
            torch.set_num_threads(int(threads))
        gpus = [fabric.device.index] if fabric.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=gpus))
        stop = stack.enter_context(StopRequest())
        shown = stack.enter_context(choose_progress(spec, progress and fabric.is_global_zero))
        # all that can be wrong with a spec or its data shows here, before there is a folder
        trainer = assemble(fabric, spec, execution, load(progress=shown.download), run, shown, stop)
        trainer.observer = watch(trainer.data)
        if fabric.is_global_zero:
            run.begin(spec)
            clean(run.resume)
        fabric.barrier()
        if run.state == "finished":  # by another process, before this one had the lock
            return stop.signum
        if spec.precision == "64-true":
            # Fabric hands outputs on in the default precision: the loss, too, shall be computed in double
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float64)
        # a signal that came too late for this run still asks the caller to stop
        return _fit(trainer, spec, run, fabric) or stop.signum


def _fit(trainer: Trainer, spec: RunSpec, run: Run, fabric: Any) -> int:
    try:
        trainer.resume()
        fabric.barrier()
        return trainer.fit()
    except Exception as error:
        if fabric.is_global_zero:
            run.record_failure(spec, error)
        raise
