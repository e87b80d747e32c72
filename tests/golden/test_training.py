"""Short runs on the CPU end at the same weights: bit for bit where the arithmetic is torch's, else as numbers.

Bits are compared on the processor and the torch that wrote them; numbers everywhere. The heads with the matrix, and the
losses of the long tail, may compute the same sums in another order: see `TOLERANCE`.
"""

import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from maxsep.lab.engine import train
from maxsep.lab.spec import Execution, RunSpec, options

TOLERANCE = {"64-true": 1e-9, "32-true": 1e-4}
"""Relative, of losses and of sums and norms of weights. Another order of sums in heads and losses moves a hundredth."""
SPEC = RunSpec(
    **{"head": "plain", "epochs": 2, "batch_size": 128, "learning_rate": 0.05},
    **{"max_train": 400, "max_test": 200, "evaluate_every": 1},
)
DOUBLE = SPEC.replace(precision="64-true")
TAIL = SPEC.replace(imbalance=0.1, max_train=None)
LDAM = TAIL.replace(loss="ldam", loss_options=options(reweight="effective", reweight_from=1))
STAGE1 = DOUBLE.replace(
    **{"network": "resnet32", "epochs": 1, "batch_size": 32, "max_train": 80, "max_test": 60},
    **{"imbalance": 0.1, "mixup": 1.0},
)
STAGE2 = STAGE1.replace(
    **{"start_from": STAGE1, "mixup": 0.0, "sampler": "class_balanced", "backbone": "frozen_shifted_norm"},
    **{"logit_scaling": True, "head_rate": 0.2, "loss": "label_aware_smoothing"},
)
EXACT = {
    "plain": SPEC,
    "scaled": SPEC.replace(head="scaled", radius=0.3),
    "cosine": SPEC.replace(head="cosine", radius=16.0),
    "extra_layer": SPEC.replace(head="extra_layer"),
    "hpn, squared cosine": SPEC.replace(head="hpn", loss="squared_cosine", head_options=options(iterations=200)),
    "label smoothing, Nesterov": SPEC.replace(nesterov=True, loss_options=options(label_smoothing=0.1)),
    "mixup, crop and flip": SPEC.replace(mixup=1.0, augmentation="crop_flip"),
    "AdamW, class-balanced": TAIL.replace(optimiser="adamw", learning_rate=1e-3, sampler="class_balanced"),
    "AutoAugment, cosine by steps": SPEC.replace(augmentation="crop_flip_auto_cutout", schedule="cosine_steps"),
    "MiSLAS stage 1": STAGE1,
}
CLOSE = {
    "maxsep, radius 1": DOUBLE.replace(head="maxsep"),
    "maxsep, radius 0.1": DOUBLE.replace(head="maxsep", radius=0.1),
    "maxsep, single precision": SPEC.replace(head="maxsep"),
    "etf": DOUBLE.replace(head="etf", head_options=options(rotation=0)),
    "learnable_matrix": DOUBLE.replace(head="learnable_matrix"),
    **{f"{head}, LDAM": LDAM.replace(head=head) for head in ("cosine", "centred_cosine")},
    **{f"{head}, LDAM": LDAM.replace(head=head) for head in ("cosine_maxsep", "maxsep_cosine")},
    "logit adjusted": TAIL.replace(loss="logit_adjusted", loss_options=options(tau=1.5)),
    "balanced softmax": TAIL.replace(loss="balanced_softmax"),
    "MiSLAS": STAGE2,
    "MiSLAS, maxsep": STAGE2.replace(head="maxsep"),
}
METRICS = ("loss", "angular_fisher", "num_train", "num_test", "parameters")
COUNTED = ("top1", "top5", "balanced", "ece", "per_class")
"""These jump with a single image, so they are compared in double precision alone."""


def run(runs, spec):
    return train(spec, runs=runs, execution=Execution(device="cpu"), progress=False)


def compare(golden, case, spec, folder):
    """Weights as summaries, what the last evaluation says, and every epoch's loss and rate."""
    metrics = json.loads((folder / "result.json").read_text())["metrics"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    entry = {key: metrics[key] for key in METRICS + (COUNTED if spec.precision == "64-true" else ())}
    entry |= {key: [line[key] for line in lines] for key in ("train_loss", "learning_rate")}
    entry |= {name: golden.summary(tensor) for name, tensor in load_file(folder / "weights.safetensors").items()}
    golden("training", case, entry | {"run": spec.name}, TOLERANCE[spec.precision])


def machine():
    """What decides the last bits: torch, its choice of instructions, and the processor that its libraries look at."""
    info = Path("/proc/cpuinfo")
    lines = dict.fromkeys(info.read_text().splitlines() if info.exists() else [])
    processor = [line for line in lines if line.startswith(("vendor_id", "cpu family", "model"))]
    instructions = torch.backends.cpu.get_cpu_capability(), os.environ.get("ONEDNN_MAX_CPU_ISA")
    return [torch.__version__, *instructions, *(" ".join(line.split()) for line in processor)]


@pytest.mark.parametrize("case", EXACT | CLOSE)
def test_short_runs(golden, tmp_path, case):
    spec = (EXACT | CLOSE)[case]
    folder = run(tmp_path, spec)
    compare(golden, case, spec, folder)
    here = golden.regenerates or golden.read("training_bits")["machine"] == machine()
    if case in EXACT and here and torch.get_num_threads() == 1:
        golden("training_bits", "machine", machine())
        golden("training_bits", case, hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest())


def test_a_run_that_is_stopped_and_resumed(golden, tmp_path):
    spec = DOUBLE.replace(head="maxsep", epochs=60, evaluate_every=20, mixup=0.2, augmentation="crop_flip")
    if golden.regenerates:  # from a run that nothing stopped
        compare(golden, "stopped and resumed", spec, run(tmp_path / "whole", spec))
    log = tmp_path / spec.name / "metrics.jsonl"

    def stop():
        while not (log.exists() and log.stat().st_size):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    with pytest.raises(SystemExit):
        run(tmp_path, spec)
    thread.join()
    assert not (log.parent / "result.json").exists()
    compare(golden, "stopped and resumed", spec, run(tmp_path, spec))
