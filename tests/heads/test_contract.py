"""Every head of the registry meets one contract and learns; the contract notices heads that do not."""

import pytest
import torch
from contract import check_head
from ranks import launch
from torch import nn
from torch.nn import functional as F

from maxsep import heads
from maxsep.heads.controls import LogitScaledHead


def small(name, **options):
    return heads.build(name, 12, 5, **({"iterations": 50} if name == "hpn" else {}), **options)


@pytest.mark.parametrize("name", heads.names())
def test_every_head_meets_the_contract(name):
    torch.compiler.reset()
    check_head(small(name), compile=True)


ONE_SIGN = {"centred_cosine", "hpn", "maxsep_cosine"}  # they normalise C-1 outputs, of which two classes have one


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("name", heads.names())
def test_every_head_learns_two_and_three_classes(name, num_classes):
    torch.manual_seed(0)
    if num_classes == 2 and name in ONE_SIGN:
        with pytest.raises(ValueError, match="num_classes"):
            heads.build(name, 12, num_classes)
        return
    model = nn.Sequential(nn.Linear(4, 12), nn.Tanh(), heads.build(name, 12, num_classes))
    y = torch.arange(60) % num_classes
    x = 4 * torch.eye(4)[y] + torch.randn(60, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    assert (model(x).argmax(1) == y).float().mean() > 0.95


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
    codes, errors = launch("ddp_rank.py", 2, tmp_path)
    assert codes == [0, 0], errors
    for rank in (0, 1):
        result = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(result["together"], result["alone"], atol=1e-12, rtol=1e-12)
