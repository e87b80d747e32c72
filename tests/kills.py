"""End verbs at random moments by a seed, go on, and compare with what they do undisturbed.

`python tests/kills.py --count 300 --seed 0` prints counts as JSON; the exit code is 1 after any failure. Children are
forked from a process that has imported everything, so that the moments lie in the work and not in the imports.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import lightning_fabric  # noqa: F401 (so that children need not import it)
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

torch.set_num_threads(1)  # before a fork no thread may have started

from maxsep import MaxSeparationHead, cli, save  # noqa: E402
from maxsep.cli import app, compare, predict, reproduce, train  # noqa: E402, F401
from maxsep.lab.data import Dataset  # noqa: E402
from maxsep.lab.report import render, svg  # noqa: E402, F401
from maxsep.lab.run import find_runs  # noqa: E402

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TRAIN = ["--network", "mlp", "--device", "cpu", "--set", "evaluate_every=5", "--set", "max_train=400"]
PATIENCE = 60
WHEN = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?")
"""A report says when it was written."""


def write_saved():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 500), MaxSeparationHead(500, 900))
    for number in range(20):
        save(model, f"model{number % 2}", labels=[str(label) for label in range(900)])


def verb(*arguments):
    def call():
        sys.argv = ["maxsep", *map(str, arguments)]
        cli.main()

    return call


COMPARE = [
    *("compare", "pictures", "--network", "mlp", "--epochs", 12, "--seeds", 2),
    *("--learning-rate", 0.01, "--radius", 1, "--device", "cpu"),
]
CASES = {
    "train": verb("train", "--epochs", 60, "--set", "calibration=0.1", *TRAIN),
    "compare": verb(*COMPARE),
    "jobs": verb(*COMPARE, "--jobs", 2),
    "reproduce": verb("reproduce", "demo", "--epochs", 8, "--seeds", 2, "--device", "cpu"),
    "export": verb("export", "recorded/run", "--out", "model"),
    "save": write_saved,
    "report": verb("report", "recorded", "--out", "page"),
}


def write_inputs(folder):
    """A folder of pictures in two classes, and a finished run."""
    chance = np.random.default_rng(0)
    for label, level in (("dark", 40), ("light", 160)):
        (folder / "pictures" / label).mkdir(parents=True)
        for number in range(24):
            pixels = chance.integers(level, level + 60, (8, 8, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "pictures" / label / f"{number}.png")
    finish(start(verb("train", "--epochs", 2, "--runs", "recorded", *TRAIN), folder), folder)
    (run,) = find_runs(folder / "recorded")
    run.folder.rename(folder / "recorded" / "run")


def start(call, folder, change=lambda: None):
    """Fork a process that makes a call in a folder, as the leader of a session; what it prints goes to `.log` there."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        log = os.open(folder / ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1), os.dup2(log, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        change()
        call()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def wait(pid, seconds):
    """Return the exit code of a child, or None if it is still there after some seconds."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def finish(pid, folder):
    """Wait for a call that nothing disturbs; raise with what it printed unless it ends well."""
    code = wait(pid, 5 * PATIENCE)
    if code != 0:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise RuntimeError(f"exit code {code}: {(folder / '.log').read_text()[-2000:]}")


def orphans(session):
    """List the processes of a session, a moment after its leader has ended."""
    for _ in range(600):  # a minute, on a busy machine
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, own = path.read_text().rpartition(")")[2].split()[:4]
                if int(own) == session and state != "Z":
                    found.append(path.parent.name)
        if not found:
            return []
        time.sleep(0.1)
    return found


def half_files(folder):
    """List files under a final name that are not whole, apart from the last line of a run's log."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not hidden(path, folder)):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text())
            elif path.suffix == ".safetensors":
                load_file(path)
            elif path.suffix in (".html", ".svg"):
                assert path.read_text().rstrip().endswith(f"</{path.suffix[1:]}>"), path
        except Exception as error:
            found.append(f"{path.relative_to(folder)}: {type(error).__name__}")
    return found


def hidden(path, folder):
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def outcome(name, folder):
    """Everything that a verb computes: weights and numbers of runs, or all bytes of what it writes."""
    if name in ("export", "save", "report"):
        parts = {"export": ["model"], "save": ["model0", "model1"], "report": ["page"]}[name]
        paths = [path for part in parts for path in (folder / part).rglob("*") if path.is_file()]
        contents = {str(path.relative_to(folder)): path.read_bytes() for path in paths if not hidden(path, folder)}
        return {path: WHEN.sub(b"", content) for path, content in contents.items()}
    results = {}
    for run in find_runs(folder / "runs"):
        rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]
        results[run.name] = (run.folder / "weights.safetensors").read_bytes(), rows, run.metrics, run.unknown
    return results


class Disturbed:
    """A verb with its folder, its undisturbed outcome, and whether it has been ended since it was last complete."""

    def __init__(self, name, inputs, base):
        self.name, self.inputs, self.folder = name, inputs, base / name
        self.renew()
        began = time.monotonic()
        finish(start(CASES[name], self.folder), self.folder)
        self.seconds, self.whole = time.monotonic() - began, outcome(name, self.folder)
        assert self.whole, name
        self.renew()

    def renew(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.inputs, self.folder)

    def kill(self, chance):
        """End the verb at a random moment; return the signal, or None if it was over before, and what is wrong."""
        number, delay = chance.choice(SIGNALS), chance.uniform(0, 0.9 * self.seconds)
        pid = start(CASES[self.name], self.folder)
        if wait(pid, delay) is not None:
            self.renew()  # unless it is new, nothing would be left to disturb
            return None, []
        os.kill(pid, number)
        code = wait(pid, PATIENCE)
        if code is None:
            os.kill(pid, signal.SIGKILL)
            wait(pid, PATIENCE)
            return number, [f"hangs after {number.name}"]
        problems = [f"orphan {process}" for process in orphans(pid)] + half_files(self.folder)
        log = (self.folder / ".log").read_text() if (self.folder / ".log").exists() else ""
        is_unborn = number == signal.SIGKILL and "in spawn_main" in log  # a child's pipe ended before it began
        if code and "Traceback" in log and not is_unborn:  # code of others may swallow an interrupt, say so, and go on
            problems.append(f"traceback after {number.name}: {log[-1500:]}")
        if number != signal.SIGKILL and code not in (128 + number, -number, 0):
            problems.append(f"exit code {code} after {number.name}: {log[-500:]}")
        return number, problems

    def complete(self):
        """Let the verb go on undisturbed; return what is wrong, and start anew."""
        try:
            finish(start(CASES[self.name], self.folder), self.folder)
            found = outcome(self.name, self.folder)
            same = [name for name in self.whole if found.get(name) == self.whole[name]]
            problems = [] if found.keys() == self.whole.keys() and len(same) == len(found) else ["other bits"]
        except RuntimeError as error:
            problems = [f"cannot go on: {error}"]
        self.renew()
        return problems


def run(count, seed, names=tuple(CASES)):
    """Try `count` ends; return counts by verb and signal, failures and seconds."""
    began, counts, failures, completed = time.monotonic(), collections.Counter(), [], 0
    Dataset.parse("digits").read(None)  # imports scikit-learn
    with tempfile.TemporaryDirectory() as base:
        inputs = Path(base) / "inputs"
        inputs.mkdir()
        write_inputs(inputs)
        verbs = [Disturbed(name, inputs, Path(base)) for name in names]
        done = 0
        for attempt in range(10 * count):
            if done == count:
                break
            verb, chance = verbs[done % len(verbs)], random.Random(f"{seed}/{attempt}")
            number, problems = verb.kill(chance)
            if number is not None:
                done += 1
                counts[f"{verb.name} {number.name}"] += 1
            if chance.random() < 0.5 or done == count:
                completed += 1
                problems = problems + verb.complete()
            failures += [f"{seed}/{attempt} {verb.name}: {re.sub(r'/tmp/[^/ ]+', '', problem)}" for problem in problems]
        failures += [f"{verb.name} at the end: {problem}" for verb in verbs for problem in verb.complete()]
    total = round(time.monotonic() - began, 1)
    return {"kills": done, "completed": completed, "counts": dict(counts), "failures": failures, "seconds": total}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbs", default=",".join(CASES))
    arguments = parser.parse_args()
    answer = run(arguments.count, arguments.seed, arguments.verbs.split(","))
    print(json.dumps(answer, indent=1))
    sys.exit(bool(answer["failures"]))
