"""Train a run in one process, and again in one and then two processes; print how far they are apart."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

from maxsep.lab.engine import step, train
from maxsep.lab.spec import Execution, RunSpec, options

torch.set_num_threads(1)

SPEC = RunSpec(epochs=3, batch_size=99, max_train=397, max_test=50, precision="64-true", weight_decay=1e-3)
SPEC = SPEC.replace(network_options=options(dropout=0.0, hidden=(32,)))  # dropout draws other units in another process
"""Five batches of which the last holds a single image: one of two processes has none."""


def run(runs: Path, devices: int) -> dict[str, torch.Tensor]:
    execution = Execution(device="cpu", devices=devices)
    folder = train(SPEC, runs=runs, execution=execution, progress=False)
    return load_file(folder / "weights.safetensors")


def interrupt(runs: Path) -> None:
    """Stop one process's run where the first epoch ends."""
    call = step.Step.__call__

    def stopping(self, indices):
        if self.epoch == 0 and self.position == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self, indices)

    step.Step.__call__ = stopping
    with contextlib.suppress(SystemExit):
        run(runs, 1)
    step.Step.__call__ = call
    if not (runs / SPEC.name / "resume").exists():
        sys.exit("the signal left no resume point")


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def main() -> None:
    folder = Path(sys.argv[1])
    one = run(folder / "one", 1)
    interrupt(folder / "two")
    two = run(folder / "two", 2)
    result = json.loads((folder / "two" / SPEC.name / "result.json").read_text())
    report = {
        "difference": difference(one, two),
        "devices": result["hardware"]["devices"],
        "resumed": result["resumed"],
        "dtype": str(one["head.weight"].dtype),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
