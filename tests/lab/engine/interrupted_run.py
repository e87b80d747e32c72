"""Train one run without interruption and again with many, in real processes, and print how they compare.

It is a script of its own so that children can be forked from a process in which torch has not started any thread:
a child then costs milliseconds instead of the seconds of an import.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import lightning_fabric  # noqa: F401 (so that children need not import it)
import torch
import torch._dynamo

torch.set_num_threads(1)

from maxsep.lab.data import prepare  # noqa: E402
from maxsep.lab.engine import checkpoint, step, train, trainer  # noqa: E402
from maxsep.lab.spec import Execution, RunSpec  # noqa: E402

SPEC = RunSpec(epochs=60, batch_size=256, evaluate_every=4, augmentation="crop_flip", seed=3)
"""1,198 digits: four full batches and a short one; dropout, augmentation and momentum make every bit of state count."""
KILLS = 10


def start(runs: Path, compiled: bool, *changes) -> int:
    """Train in a forked process, after some changes to the code that only this process sees."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for change in changes:
            change()
        execution = Execution(device="cpu", compile=compiled, checkpoint_steps=3)
        train(SPEC, runs=runs, execution=execution, progress=False)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"a child ended with status {status}")


def kill(pid: int) -> bool:
    """Kill without mercy; tells whether the process was still alive."""
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        if status:
            sys.exit(f"a child ended with status {status}")
        return False
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def slow_steps(flag: Path) -> None:
    """Slow the steps down, so that kills hit them, and say when the first whole batch is done and compiled."""
    call = step.Step.__call__

    def slow(self, indices):
        loss = call(self, indices)
        if len(indices) == SPEC.batch_size:
            flag.touch()
        time.sleep(0.01)
        return loss

    step.Step.__call__ = slow


def halt_in_save(flag: Path) -> None:
    """Stop for ever inside the next save, when half of its files are written."""
    write = checkpoint.write_file

    def halting(path: Path, content: bytes) -> None:
        if path.name == "state.json":
            write(path, content[: len(content) // 2])
            flag.touch()
            time.sleep(600)
        write(path, content)

    checkpoint.write_file = halting


def halt_before_short_batch(flag: Path) -> None:
    call = step.Step.__call__

    def halting(self, indices):
        if len(indices) < SPEC.batch_size:
            flag.touch()
            time.sleep(600)
        return call(self, indices)

    step.Step.__call__ = halting


def forget_random_state() -> None:
    checkpoint.Generators.set = lambda self, states: True


def forget_position() -> None:
    unpack = trainer.unpack

    def forgetful(point, state, network, optimiser):
        states = unpack(point, state, network, optimiser)
        state.step = 0
        return states

    trainer.unpack = forgetful


def kill_at(pid: int, flag: Path, delay: float = 0.0) -> None:
    """Kill a process some time after it has set its flag."""
    while not flag.exists():
        time.sleep(0.005)
    time.sleep(delay)
    if not kill(pid):
        sys.exit("the run was over before it could be killed: make it longer")
    flag.unlink()  # not before: the process would set it again


def interrupted(work: Path, compiled: bool, clock: random.Random) -> int:
    """Train with kills until the run is finished; give their number."""
    flag = work / "flag"
    kill_at(start(work, compiled, lambda: halt_before_short_batch(flag)), flag)
    for _ in range(KILLS):
        kill_at(start(work, compiled, lambda: slow_steps(flag)), flag, clock.uniform(0.05, 0.35))
    kill_at(start(work, compiled, lambda: halt_in_save(flag)), flag)
    finish(start(work, compiled))
    return KILLS + 2


def forgetful(work: Path, compiled: bool, change) -> Path:
    """Kill a run inside an epoch and resume it with a part of its state forgotten."""
    kill_at(start(work, compiled, lambda: halt_before_short_batch(work / "flag")), work / "flag")
    finish(start(work, compiled, change))
    return work


def outcome(runs: Path) -> dict:
    folder = next(runs.glob("*/result.json")).parent
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    return {
        "weights": (folder / "weights.safetensors").read_bytes().hex(),
        "rows": [{key: value for key, value in row.items() if key != "seconds"} for row in rows],
        "metrics": result["metrics"],
    }


def same(runs: Path, reference: dict) -> dict[str, bool]:
    found = outcome(runs)
    return {key: found[key] == reference[key] for key in reference}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    prepare(SPEC, None)  # imports scikit-learn
    if args.compile:
        import torch._inductor.compile_fx  # noqa: F401
    works = {name: args.folder / name for name in ("reference", "killed", "random", "position")}
    for work in works.values():
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
    finish(start(works["reference"], args.compile))
    reference = outcome(works["reference"])
    kills = interrupted(works["killed"], args.compile, random.Random(args.seed))
    folder = next(works["killed"].glob("*/result.json")).parent
    result = json.loads((folder / "result.json").read_text())
    report = {
        "kills": kills,
        "resumed": result["resumed"],
        "compiled": result["execution"]["compile"],
        "left": sorted(path.name for path in folder.iterdir()),
        "killed": same(works["killed"], reference),
    }
    for name, change in (("random", forget_random_state), ("position", forget_position)):
        report[name] = same(forgetful(works[name], args.compile, change), reference)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
