"""Train a spec: the one entrance to the engine."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from maxsep.lab.data import prepare
from maxsep.lab.engine.assemble import assemble
from maxsep.lab.engine.launch import make_fabric
from maxsep.lab.engine.progress import choose_progress
from maxsep.lab.engine.record import RunFolder
from maxsep.lab.engine.schedules import learning_rate
from maxsep.lab.engine.stop import StopRequest
from maxsep.lab.spec import Execution, RunSpec

_DEFAULT = Execution()


def train(
    spec: RunSpec,
    *,
    data_root: str | Path | None = None,
    runs: str | Path = "runs",
    execution: Execution = _DEFAULT,
    progress: bool = True,
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

    Returns:
        The folder with `spec.json`, `metrics.jsonl`, `weights.safetensors` and `result.json`.

    Raises:
        ValueError: The spec or the execution names something unknown, or the folder holds another run.
        NonFiniteError: The loss became infinite or not a number.
        SystemExit: 143 or 130, when a SIGTERM or SIGINT came; the state was saved, and the same call goes on.

    >>> import tempfile
    >>> folder = train(RunSpec(epochs=1), runs=tempfile.mkdtemp(), progress=False)
    >>> sorted(path.name for path in folder.iterdir())
    ['metrics.jsonl', 'result.json', 'spec.json', 'weights.safetensors']
    """
    folder = RunFolder(Path(runs) / spec.name)
    if folder.is_finished(spec):
        return folder.path
    if spec.start_from is not None:
        train(spec.start_from, data_root=data_root, runs=runs, execution=execution, progress=progress)
    learning_rate(spec, 0)  # a bad schedule shall not wait for the data to be read
    fabric = make_fabric(spec, execution)
    # Fabric looks into the arguments of what it launches and refuses frozen dataclasses; a partial hides them
    signum = fabric.launch(functools.partial(_run, spec, execution, folder, data_root, progress))
    if signum:
        raise SystemExit(128 + signum)
    return folder.path


def _run(
    spec: RunSpec,
    execution: Execution,
    folder: RunFolder,
    data_root: str | Path | None,
    progress: bool,
    fabric: Any,
) -> int:
    """Train in one process; with several, each calls this."""
    with ExitStack() as stack:
        if fabric.is_global_zero:
            stack.enter_context(folder.lock())
            folder.begin(spec)
        fabric.barrier()
        if folder.is_finished(spec):  # by another process, while this one waited for nothing
            return 0
        if threads := dict(execution.extra).get("threads"):
            torch.set_num_threads(int(threads))
        gpus = [fabric.device.index] if fabric.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=gpus))
        stop = stack.enter_context(StopRequest())
        data = prepare(spec, data_root)
        shown = stack.enter_context(choose_progress(spec, progress and fabric.is_global_zero))
        trainer = assemble(fabric, spec, execution, data, folder, shown, stop)
        trainer.resume()
        if spec.precision == "64-true":
            # Fabric hands outputs on in the default precision: the loss, too, shall be computed in double
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float64)
        fabric.barrier()
        return trainer.fit()
