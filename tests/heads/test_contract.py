"""Every head of the registry meets one contract and learns; the contract notices heads that do not."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contract import check_head
from torch import nn
from torch.nn import functional as F

from maxsep import heads
from maxsep.heads.controls import LogitScaledHead

SIGNS = ("hpn", "maxsep_cosine", "centred_cosine")  # one normalised output is a sign


def small(name, **options):
    return heads.build(name, 12, 5, **({"iterations": 50} if name == "hpn" else {}), **options)


@pytest.mark.parametrize("name", heads.names())
def test_every_head_meets_the_contract(name):
    torch.compiler.reset()
    check_head(small(name), compile=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("etf", {"normalise": True}),
        ("etf", {"bias": True}),
        ("etf", {"reserved": 3}),
        ("etf", {"rotation": 0}),
        ("hpn", {"normalise": False}),
        ("maxsep", {"class_order": [3, 1, 4, 0, 2]}),
        ("maxsep", {"bias": False, "radius": 0.1}),
    ],
)
def test_options_meet_the_contract(name, options):
    torch.compiler.reset()
    check_head(small(name, **options), compile="class_order" in options)
    check_head(LogitScaledHead(small(name, **options)))


def test_many_classes_meet_the_contract():
    check_head(heads.build("maxsep", 12, 500, radius=0.1))


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("name", heads.names())
def test_every_head_learns_or_refuses_two_classes(name, num_classes):
    torch.manual_seed(0)
    options = {"hpn": {"iterations": 300}, "etf": {"rotation": 0}}.get(name, {})
    radius = 1.0 if name in ("plain", "extra_layer") else 5.0
    if num_classes == 2 and name in SIGNS:
        with pytest.raises(ValueError, match="num_classes"):
            heads.build(name, 8, 2, radius, **options)
        return
    head = heads.build(name, 8, num_classes, radius, **options)
    centres = 4 * torch.randn(num_classes, 4)
    target = torch.arange(60) % num_classes
    x = centres[target] + torch.randn(60, 4)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), head)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(model(x), target).backward()
        optimiser.step()
    assert (model(x).argmax(1) == target).float().mean() >= 0.95


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the shapes of features and classes are constants
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("num_classes", [5, 700])
@pytest.mark.parametrize("name", heads.names())
def test_torch_jit_traces_every_head_for_any_batch(name, num_classes, tmp_path):
    options = {"hpn": {"iterations": 3}, "maxsep": {"class_order": torch.randperm(num_classes)}}.get(name, {})
    head = heads.build(name, 800, num_classes, **options).eval()
    with torch.no_grad():
        torch.jit.trace(head, torch.randn(3, 800)).save(tmp_path / "head.pt")
    traced, x = torch.jit.load(tmp_path / "head.pt"), torch.randn(7, 800)
    assert torch.allclose(traced(x), head(x), atol=1e-5)


@pytest.mark.parametrize("name", heads.names())
def test_symbolic_traces(name):
    head, x = small(name).eval(), torch.randn(7, 12)
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(12, 12), head))
    torch.testing.assert_close(traced(x), nn.Sequential(traced.get_submodule("0"), head)(x))


@pytest.mark.distributed
def test_two_processes_with_ddp_equal_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    script = Path(__file__).with_name("ddp_rank.py")
    command = [sys.executable, script]
    processes = [
        subprocess.Popen([*command, str(rank), port, tmp_path], stderr=subprocess.PIPE, text=True) for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    for rank in (0, 1):
        result = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(result["together"], result["alone"], atol=1e-12, rtol=1e-12)


class Broken(nn.Module):
    """A linear head with one fault, chosen by name."""

    def __init__(self, fault):
        super().__init__()
        self.in_features, self.num_classes, self.fault = 6, 4, fault
        self.layer = nn.Linear(6, 4)
        self.register_buffer("fixed", torch.ones(4))
        self.spare = nn.Parameter(torch.zeros(3)) if fault == "unused parameter" else None

    def forward(self, x):
        if self.fault == "flattens":
            x = x.flatten(0, -2)
        logits = self.layer(x) * self.fixed
        if self.fault == "moves" and self.training:
            self.fixed = self.fixed * 0.9
        if self.fault == "mixes the batch" and logits.dim() > 1:
            logits = logits - logits.mean(0)
        return logits.to(torch.float64) if self.fault == "widens" else logits

    def get_extra_state(self):
        return torch.zeros(())

    def set_extra_state(self, state):
        if self.fault == "cannot load":
            raise RuntimeError


@pytest.mark.parametrize(
    ("fault", "demand"),
    [
        ("flattens", "logits_of_any_leading_shape"),
        ("mixes the batch", "samples_are_independent"),
        ("unused parameter", "gradient_reaches_everything"),
        ("moves", "fixed_parts_stay_fixed"),
        ("cannot load", "state_dict_round_trip"),
        ("widens", "half_precision"),
    ],
)
def test_the_contract_notices(fault, demand):
    check_head(Broken(None))
    with pytest.raises(AssertionError, match=demand):
        check_head(Broken(fault))
