"""Train one run without interruption and again with many, in real processes, and print how they compare.

It is a script of its own so that children can be forked from a process in which torch has not started any thread:
a child then costs milliseconds instead of the seconds of an import.
"""

import functools
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import lightning_fabric  # noqa: F401 (so that children need not import it)
import torch
import torch._dynamo
import torch._inductor.compile_fx

torch.set_num_threads(1)

from maxsep.lab.data import prepare  # noqa: E402
from maxsep.lab.engine import checkpoint, step, train, trainer  # noqa: E402
from maxsep.lab.run import find_runs  # noqa: E402
from maxsep.lab.spec import Execution, RunSpec  # noqa: E402

SPEC = RunSpec(epochs=60, batch_size=256, evaluate_every=4, augmentation="crop_flip", seed=3)
"""1,198 digits: four full batches and a short one; dropout, augmentation and momentum make every bit of state count."""
KILLS = 10
COMPILED = "--compile" in sys.argv


def start(runs, change=lambda: None):
    """Train in a forked process, after a change to the code that only this process sees."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        change()
        execution = Execution(device="cpu", compile=COMPILED, checkpoint_steps=3)
        train(SPEC, runs=runs, execution=execution, progress=False)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(pid):
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"a child ended with status {status}")


def kill_at(pid, flag):
    """Kill a process without mercy once it has set its flag."""
    while not flag.exists():
        time.sleep(0.005)
    if os.waitpid(pid, os.WNOHANG) != (0, 0):
        sys.exit("the run was over before it could be killed: make it longer")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    flag.unlink()  # not before: the process would set it again


def slow_steps(flag, count):
    """Slow the steps down, so that kills hit them, and say when so many whole batches are done."""
    call, left = step.Step.__call__, iter(range(count))

    def slow(self, indices):
        loss = call(self, indices)
        if len(indices) == SPEC.batch_size and next(left, None) is None:
            flag.touch()
        time.sleep(0.01)
        return loss

    step.Step.__call__ = slow


def halt_before_short_batch(flag):
    call = step.Step.__call__

    def halting(self, indices):
        if len(indices) < SPEC.batch_size:
            flag.touch()
            time.sleep(600)
        return call(self, indices)

    step.Step.__call__ = halting


def halt_in_save(flag):
    """Stop for ever inside the next save, when half of its files are written."""
    write = checkpoint.write_file

    def halting(path, content):
        if path.name == "state.json":
            write(path, content[: len(content) // 2])
            flag.touch()
            time.sleep(600)
        write(path, content)

    checkpoint.write_file = halting


def forget_random_state():
    checkpoint.Generators.set = lambda self, states: True


def forget_position():
    unpack = trainer.unpack

    def forgetful(point, state, network, optimiser):
        states = unpack(point, state, network, optimiser)
        state.step = 0
        return states

    trainer.unpack = forgetful


def train_with_kills(work, clock):
    flag = work / "flag"
    kill_at(start(work, lambda: halt_before_short_batch(flag)), flag)
    for _ in range(KILLS):
        kill_at(start(work, functools.partial(slow_steps, flag, clock.randrange(20))), flag)
    kill_at(start(work, lambda: halt_in_save(flag)), flag)
    finish(start(work))


def train_forgetfully(work, change):
    """Kill a run inside an epoch and resume it with a part of its state forgotten."""
    kill_at(start(work, lambda: halt_before_short_batch(work / "flag")), work / "flag")
    finish(start(work, change))


def outcome(runs):
    (run,) = find_runs(runs)
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]
    return {"weights": (run.folder / "weights.safetensors").read_bytes(), "rows": rows, "metrics": run.metrics}


def main():
    prepare(SPEC, None)  # imports scikit-learn
    works = {name: Path(sys.argv[1]) / name for name in ("reference", "killed", "random", "position")}
    for work in works.values():
        work.mkdir(parents=True)
    finish(start(works["reference"]))
    train_with_kills(works["killed"], random.Random(0))
    train_forgetfully(works["random"], forget_random_state)
    train_forgetfully(works["position"], forget_position)
    reference = outcome(works.pop("reference"))
    (killed,) = find_runs(works["killed"])
    report = {
        "resumed": killed.result["resumed"],
        "compiled": killed.result["execution"]["compile"],
        "left": sorted(path.name for path in killed.folder.iterdir()),
    }
    for name, work in works.items():
        report[name] = {key: value == reference[key] for key, value in outcome(work).items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
