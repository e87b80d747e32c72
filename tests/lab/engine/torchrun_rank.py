"""Train specs in one process, or under torchrun in several: `torchrun_rank.py FOLDER DEVICES [CASE ...]`.

Every process writes `facts-RANK.json` into the folder: what was sharded, and which errors came as they should.
"""

import atexit
import json
import os
import signal
import sys
from pathlib import Path

import torch

from maxsep.lab.engine import step, train, trainer
from maxsep.lab.spec import Execution, RunSpec, options

SMALL = options(dropout=0.0, hidden=(32,))  # dropout draws other units in another process
SPEC = RunSpec(epochs=2, batch_size=99, max_train=397, max_test=51, weight_decay=1e-3, network_options=SMALL)
SPEC = SPEC.replace(precision="64-true")
"""Five batches of which the last holds a single image, and an odd number of test images."""
TAIL = SPEC.replace(imbalance=0.1, max_train=None, batch_size=90)
REWEIGHTED = TAIL.replace(head="cosine", loss="ldam", loss_options=options(reweight="effective"))
ADAMW = SPEC.replace(seed=3, optimiser="adamw", learning_rate=1e-2, clip_norm=0.5, class_order="frequency")
STAGES = SPEC.replace(seed=4, start_from=SPEC.replace(seed=4, epochs=1), backbone="frozen")
SHARDED = {"sharded": True}
CASES = {
    "ddp": (SPEC, {}),
    "ddp in parts": (SPEC.replace(seed=1, calibration=0.2), {"accumulate": 3}),
    "class weights": (REWEIGHTED, {"accumulate": 2}),
    "fsdp": (SPEC.replace(seed=2, calibration=0.2), SHARDED | {"checkpoint_steps": 3}),
    "fsdp in parts": (ADAMW, SHARDED | {"accumulate": 2}),
    "fsdp of the second stage": (STAGES, SHARDED),
    "fsdp resumed": (SPEC.replace(seed=5, epochs=3), SHARDED),
}
"""Specs, and how several processes train them; one process trains all of them whole."""


def interrupt(spec, rank, run):
    """Stop after the first epoch, go on where one process does not see the resume point, and stop after the second."""
    call, refused = step.Step.__call__, False
    for place in ("", "elsewhere" * rank, ""):
        left = [signal.SIGTERM]

        def stopping(self, indices, left=left):
            if left:
                os.kill(os.getpid(), left.pop())
            return call(self, indices)

        step.Step.__call__ = stopping
        try:
            run(spec, place)
        except SystemExit:
            continue
        except ValueError as error:
            refused = "resume points" in str(error)
    step.Step.__call__ = call
    return refused


def main(folder, devices, *names):
    torch.set_num_threads(1)
    # what is registered first runs last
    atexit.register(lambda: (folder / f"ended-{rank}").write_text(str(not torch.distributed.is_initialized())))
    rank, gather, facts = int(os.environ.get("RANK", "0")), trainer.whole, {"sharded": [], "refused": []}
    for name in names or CASES:
        spec, how = CASES[name]
        execution = Execution(device="cpu", devices=devices, **how if "RANK" in os.environ else {})

        def run(spec, place, execution=execution):
            train(spec, runs=folder / place, execution=execution, progress=False)

        def noted(tensors, name=name):
            if any(hasattr(tensor, "full_tensor") for tensor in tensors.values()):
                facts["sharded"].append(name)
            return gather(tensors)

        trainer.whole = noted
        if name == "fsdp resumed" and "RANK" in os.environ and interrupt(spec, rank, run):
            facts["refused"].append(name)
        run(spec, "")
    (folder / f"facts-{rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
