"""Corrupt files of every kind by a seed, read them as users do, and count what becomes of each.

`python tests/corruptions.py --count 2000 --seed 0` prints the counts as JSON; the exit code is 1 after any failure. A
corruption must be refused in one line that names a file, or leave all numbers as they were. Two cases have no sums: old
records are `warned` of whenever they are read, and another table of one's own is `other data`.
"""

import argparse
import collections
import functools
import json
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from damage import corrupt
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat
from torch import nn

from maxsep import MaxSeparationHead, load, save
from maxsep.files import MANIFEST, sha256_of, write_folder
from maxsep.lab.data import Dataset, listing
from maxsep.lab.data.folder import read_imagenet
from maxsep.lab.data.official import read_parts
from maxsep.lab.engine import train
from maxsep.lab.engine.step import Step
from maxsep.lab.export import export
from maxsep.lab.networks.pretrained import load_weights
from maxsep.lab.predict import open_model
from maxsep.lab.reference import load_reference
from maxsep.lab.report.runs import collect
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

RECORDED = Path(__file__).parents[1] / "results" / "runs"
SPEC = RunSpec(epochs=2, batch_size=64, max_train=200, max_test=60, calibration=0.2)
IMAGES = torch.arange(4 * 64).remainder(256).to(torch.uint8).view(4, 1, 8, 8)
LIMIT = 60
"""Seconds for reading a damaged folder."""
HARMLESS = {
    "run MANIFEST.json removed": "a run of before there were manifests: read with a warning",
    "resume spec.json removed": "written anew",
    "resume spec.json types": "options that are an empty object are no options, as in an empty list",
    "resume metrics.jsonl": "written anew from the resume point",
    "resume MANIFEST.json": "the point before the damaged one ends at the same bits; so do the next three",
    "resume model.safetensors": "",
    "resume train_state.safetensors": "",
    "resume state.json": "",
    "report MANIFEST.json removed": "as for runs",
    "report weights.safetensors removed": "not read by the report",
    "report SHA256SUMS": "lines that are gone list no file: as for runs",
    "cached splits.json": "the pictures are decoded anew; so they are if splits.json is swapped with another file",
    "cached test.npy swapped": "",
    "cached train.npy swapped": "",
    "official MANIFEST.json": "sums that are gone, or of no file, are written anew after the files were read",
}
"""Case, file and, if only one kind of damage is harmless, that kind; and why the numbers stay."""


class Case(NamedTuple):
    """How to write a folder in two variants (0 and 1), and how to read all of its numbers."""

    write: Any
    read: Any
    swaps_folders: bool = False  # whether another variant's folders under this one's names are damage
    unnoticed: str = "silent"  # what other numbers are called


def write_saved(root, variant):
    torch.manual_seed(variant)
    labels = ["cat", "dog", "owl"]
    save(nn.Sequential(nn.Linear(6, 5), MaxSeparationHead(5, 3)), root / "model", labels=labels, extra={"a": [1]})


def read_saved(root):
    model = nn.Sequential(nn.Linear(6, 5), MaxSeparationHead(5, 3))
    return load(root / "model", model), [tensor.tolist() for tensor in model.state_dict().values()]


def finish(runs, variant):
    spec = SPEC.replace(seed=variant)
    train(spec, runs=runs, execution=Execution(device="cpu"), progress=False)
    scores = {"energy": {"full": {"auroc": 0.5 + variant / 10, "aupr": 0.5, "fpr95": 0.5, "oscr": 0.5}}}
    sets = {"svhn": {"origin": "SVHN", "count": 9, "scores": scores, "histograms": {}}}
    Run(runs / spec.name).add("detection.json", {"schema": 1, "sets": sets})
    shutil.rmtree(runs / ".locks")
    return runs / spec.name


def write_run(root, variant):
    finish(root, variant).rename(root / "run")
    (root / "run").rename(root / SPEC.name)


def read_run(root):
    run, classifier = Run(root / SPEC.name), open_model(root / SPEC.name, "cpu")
    return classifier.logits(IMAGES).tolist(), run.result, run.spec, run.history, run.detection, run.features


def write_record(root, variant):
    write_run(root, variant)
    (root / SPEC.name / "MANIFEST.json").unlink()


def read_record(root):
    run = Run(root / SPEC.name)
    weights = {name: tensor.tolist() for name, tensor in run.weights().items()}
    return weights, run.metrics, run.spec, run.history, run.detection


def write_export(root, variant, format="safetensors"):
    export(finish(root / "runs", variant), root / "model", format)
    shutil.rmtree(root / "runs")


def read_export(root):
    classifier = open_model(root / "model", "cpu")
    return classifier.logits(IMAGES).tolist(), classifier.labels, classifier.unknown, classifier.spec


class Stopped(BaseException):
    """Ends a training in the middle, as a kill does, and what takes too long."""


def write_resume(root, variant, last=3):
    call, steps = Step.__call__, iter(range(100))

    def counted(self, indices):
        if next(steps) == last:
            raise Stopped
        return call(self, indices)

    execution = Execution(device="cpu", checkpoint_steps=2)
    try:
        with mock.patch.object(Step, "__call__", counted):
            train(SPEC.replace(seed=variant), runs=root, execution=execution, progress=False)
    except Stopped:
        (root / SPEC.replace(seed=variant).name).rename(root / "run")
        (root / "run").rename(root / SPEC.name)
        shutil.rmtree(root / ".locks")


def read_resume(root):
    run = Run(train(SPEC, runs=root, execution=Execution(device="cpu"), progress=False))
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history]
    return {name: tensor.tolist() for name, tensor in run.weights().items()}, rows


def write_report_inputs(root, variant):
    names = sorted(path.name for path in RECORDED.glob("*/"))[variant :: len(SPEC.name)][:3]
    lines = (RECORDED / "SHA256SUMS").read_text().splitlines(keepends=True)
    for name in names:
        shutil.copytree(RECORDED / name, root / name)
    (root / "SHA256SUMS").write_text("".join(line for line in lines if line.split("  ")[1].split("/")[0] in names))
    write_run(root, variant)


def read_report_inputs(root):
    """The numbers of all runs; what the report names as a problem is refused, if all other numbers stay."""
    found = collect(root)
    if found.problems:
        numbers = read_report_inputs(root.parent / "whole")
        broken = {problem.folder.name for problem in found.problems}
        partly = {problem.folder.parent.name for problem in found.problems if problem.folder.suffix == ".json"}
        for name, values in numbers.items():
            if name not in broken | partly and found.values.get(name) != values:
                return found.values
        raise ValueError(f"{found.problems[0].folder}: {found.problems[0].reason}")
    return found.values


def write_pictures(root, variant, suffix=".png"):
    chance = np.random.default_rng(variant)
    for part, count in (("train", 3), ("val", 2)):
        for label in ("n0", "n1"):
            folder = root / part / label
            folder.mkdir(parents=True)
            for number in range(count):
                picture = Image.fromarray(chance.integers(0, 256, (16, 16, 3), np.uint8))
                picture.save(folder / f"{number}{suffix}", "PNG")


def values(*sets):
    return [(images.images.tolist(), images.labels.tolist(), images.classes) for images in sets]


def write_decoded(root, variant):
    write_pictures(root / "imagenet", variant, ".JPEG")
    read_decoded(root)
    shutil.rmtree(root / "imagenet")
    (root / "decoded" / ".imagenet-16.lock").unlink(missing_ok=True)


def read_decoded(root):
    data = read_imagenet("imagenet?size=16", "imagenet", root / "decoded" / "imagenet-16", 16)
    return values(data.train, data.test), data.fingerprint


def write_cached(root, variant):
    write_pictures(root.parent / f"pictures{variant}", variant)
    read_cached(root, variant)
    (root / ".cache.lock").unlink(missing_ok=True)


def read_cached(root, variant=0):
    pictures = Dataset.parse(f"folder:{root.parent}/pictures{variant}?size=16").listing()
    with mock.patch.object(listing, "MAPPED", 0):
        data = listing.read_listed(pictures, 16, "pictures", root / "cache")
    return values(data.train, data.test)


def write_table(root, variant):
    pictures = root.parent / f"pictures{variant}"
    write_pictures(pictures, variant)
    rows = [f"{path},{path.parent.name},{path.parts[-3]}" for path in sorted(pictures.rglob("*.png"))]
    (root / "table.csv").write_text("\n".join(["path,label,split", *rows]))


def read_table(root):
    data = Dataset.parse(f"table:{root / 'table.csv'}?size=16").read()
    return values(data.train, data.test)


def write_reference(root, variant):
    load_reference(SPEC, root)
    (path,) = (path for path in root.glob("reference-*/*") if path.name != MANIFEST)
    numbers = json.loads(path.read_text()) | {"num_train": 160 + variant}
    write_folder(path.parent, lambda new: (new / path.name).write_text(json.dumps(numbers)))


def write_weights(root, variant):
    torch.manual_seed(variant)
    save_file(nn.Linear(6, 5).state_dict(), root / "weights.safetensors")


def read_weights(root):
    network, path = nn.Linear(6, 5), root / "weights.safetensors"
    expected = sha256_of(root.parent / "whole" / path.name)  # as the spec of a run has it
    load_weights(network, "mlp", expected, path, (1, 8, 8), options={}, names={})
    return {name: tensor.tolist() for name, tensor in network.state_dict().items()}


def write_official(root, variant):
    chance, folder = np.random.default_rng(variant), root / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {"data": chance.integers(0, 256, (10, 3072), np.uint8), "labels": list(range(10))}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"{variant} {i}" for i in range(10)]}))
    (root / "svhn").mkdir()
    for part in ("train", "test"):
        pixels, digits = chance.integers(0, 256, (32, 32, 3, 10), np.uint8), np.arange(1, 11, dtype=np.uint8)[:, None]
        savemat(root / "svhn" / f"{part}_32x32.mat", {"X": pixels, "y": digits})
    read_official(root)


def read_official(root):
    return values(*read_parts("cifar10", root, "train", "test"), *read_parts("svhn", root, "train", "test"))


CASES = {
    "saved": Case(write_saved, read_saved),
    "export": Case(write_export, read_export),
    "resume": Case(write_resume, read_resume, swaps_folders=True),
    "resume twice": Case(functools.partial(write_resume, last=5), read_resume, swaps_folders=True),
    "run": Case(write_run, read_run, swaps_folders=True),
    "record": Case(write_record, read_record, unnoticed="warned"),
    "report": Case(write_report_inputs, read_report_inputs, swaps_folders=True),
    "decoded": Case(write_decoded, read_decoded),
    "cached": Case(write_cached, read_cached),
    "table": Case(write_table, read_table, unnoticed="other data"),
    "reference": Case(write_reference, lambda root: asdict(load_reference(SPEC, root))),
    "weights": Case(write_weights, read_weights),
    "official": Case(write_official, read_official),
}
ONNX = {"onnx": Case(functools.partial(write_export, format="onnx"), read_export)}  # takes ten seconds to write


@contextmanager
def limited(seconds):
    """Raise Stopped in whatever takes longer; an alarm that was set before is set again."""

    def stop(*_):
        raise Stopped

    handler, left = signal.signal(signal.SIGALRM, stop), signal.setitimer(signal.ITIMER_REAL, seconds)[0]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


def outcome(case, name, work, whole, kind, path, seconds=LIMIT):
    """Read a damaged folder: refused, harmless, what it is called without sums, or what is wrong."""
    try:
        with limited(seconds), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            numbers = repr(case.read(work))
    except Stopped:
        return "hang"
    except (ValueError, FileNotFoundError) as error:
        is_clear = str(work) in str(error) and ("\n" not in str(error) or isinstance(error, listing.FolderError))
        return "refused" if is_clear else f"unclear: {error!r}"
    except Exception as error:
        return f"traceback: {error!r}"[:300]
    if case.unnoticed == "warned" and not any(MANIFEST in str(warning.message) for warning in caught):
        return "silent"
    if numbers != whole or case.unnoticed != "silent":
        return "harmless" if numbers == whole else case.unnoticed
    where = f"{name.split()[0]} {path.name}"
    return "harmless" if HARMLESS.keys() & {where, f"{where} {kind}"} else "unexplained"


def run(count, seed, cases=CASES):
    """Try `count` corruptions; return counts by case and outcome, failures, and seconds of the slowest."""
    counts: dict = {name: collections.Counter() for name in cases}
    failures, harmless, slowest = [], collections.Counter(), 0.0
    with tempfile.TemporaryDirectory() as base:
        folders = {name: [Path(base, name, part) for part in ("whole", "other", "work")] for name in cases}
        wholes = {}
        for name, case in cases.items():
            for variant, folder in enumerate(folders[name][:2]):
                folder.mkdir(parents=True)
                case.write(folder, variant)
            shutil.copytree(folders[name][0], folders[name][2])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wholes[name] = repr(case.read(folders[name][2]))
        for number in range(count):
            name = list(cases)[number % len(cases)]
            whole, other, work = folders[name]
            shutil.rmtree(work)
            shutil.copytree(whole, work)
            kind, path = corrupt(work, other, random.Random(f"{seed}/{number}"), cases[name].swaps_folders)
            began = time.monotonic()
            result = outcome(cases[name], name, work, wholes[name], kind, path)
            slowest = max(slowest, time.monotonic() - began)
            counts[name][result.split(":")[0]] += 1
            if result == "harmless":
                harmless[f"{name}: {path.name} {kind}"] += 1
            elif result not in ("refused", "warned", "other data"):
                failures.append(f"{seed}/{number} {name}: {path.relative_to(work)} {kind}: {result}")
    total = {kind: sum(found[kind] for found in counts.values()) for kind in ("silent", "warned", "other data")}
    return {"total": total, "counts": counts, "harmless": harmless, "failures": failures, "slowest": round(slowest, 2)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    found = run(arguments.count, arguments.seed, CASES | ONNX)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["failures"]))
