import sys

import pytest
import torch

from maxsep.lab.engine.train import make_fabric
from maxsep.lab.spec import Execution, RunSpec, options


@pytest.mark.parametrize(
    ("spec", "execution", "message"),
    [
        ({}, {"device": "tpu"}, r"unknown device 'tpu'. Known: auto, cpu, cuda"),
        ({"precision": "8"}, {}, r"unknown precision '8'. Known: 16-mixed, 32-true"),
        ({"precision": "16-mixed"}, {"device": "cpu"}, r"on a CPU it would silently be bfloat16. Use 'bf16-mixed'"),
        ({}, {"devices": 0}, "devices and checkpoint_every must be at least 1, got 0 and 10"),
        ({}, {"checkpoint_every": 0}, "must be at least 1, got 1 and 0"),
        ({}, {"extra": options(speed=3)}, r"unknown execution options: speed. Known: checkpoint_steps"),
        (
            {},
            {"extra": options(compile_mode="default", compile_options="combo_kernels")},
            "takes compile_mode or compile_options, got both. Leave one of them out",
        ),
        ({}, {"device": "cpu", "cuda_graph": True}, "cuda_graph needs a CUDA device"),
    ],
)
def test_what_cannot_be_is_refused_before_training(spec, execution, message):
    with pytest.raises(ValueError, match=message):
        make_fabric(RunSpec(**spec), Execution(**execution))


@pytest.mark.parametrize(
    ("spec", "execution", "message"),
    [
        ({}, {"devices": 4}, r"4 devices were asked for, torch finds 2. Ask for fewer"),
        ({}, {"devices": 2, "cuda_graph": True}, "cuda_graph works on one device, got 2"),
        (
            {},
            {"cuda_graph": True, "extra": options(compile_mode="max-autotune")},
            r"'max-autotune' captures graphs of its own.*max-autotune-no-cudagraphs",
        ),
        ({"precision": "16-mixed"}, {"cuda_graph": True}, r"cannot scale half-precision gradients.*bf16-mixed"),
    ],
)
def test_what_a_gpu_cannot_do_is_refused(monkeypatch, spec, execution, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=message):
        make_fabric(RunSpec(**spec), Execution(**execution))


def test_a_missing_gpu_is_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"torch finds no CUDA device. Use 'auto' or 'cpu'"):
        make_fabric(RunSpec(), Execution(device="cuda"))
    assert make_fabric(RunSpec(), Execution()).device.type == "cpu"


def test_a_missing_fabric_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ImportError, match=r'pip install "maxsep\[lab\]"'):
        make_fabric(RunSpec(), Execution(device="cpu"))
