"""Every head of the registry meets one contract; the contract notices heads that do not."""

import pytest
import torch
from torch import nn

from maxsep import check_head, heads
from maxsep.heads.contract import HeadContractError
from maxsep.ops.cache import clear_cache


def small(name, **options):
    return heads.build(name, 12, 5, **({"iterations": 50} if name == "hpn" else {}), **options)


@pytest.mark.parametrize("name", heads.names())
def test_every_head_meets_the_contract(name):
    torch.compiler.reset()
    check_head(small(name), compile=True)


def test_the_householder_basis_meets_it_too():
    torch.compiler.reset()
    check_head(small("maxsep", basis="householder"), compile=True)
    check_head(heads.build("maxsep", 12, 500, radius=0.1, basis="householder"))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the shapes of features and classes are constants
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("num_classes", [2, 5, 700])
@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in heads.names()), ("maxsep", {"basis": "householder"})]
)
def test_torch_jit_traces_every_head_for_any_batch(name, options, num_classes, tmp_path):
    options |= {"iterations": 3} if name == "hpn" else {}
    clear_cache()
    head = heads.build(name, 800, num_classes, **options).eval()
    with torch.no_grad():
        torch.jit.trace(head, torch.randn(3, 800)).save(tmp_path / "head.pt")
    traced, x = torch.jit.load(tmp_path / "head.pt"), torch.randn(7, 800)
    assert traced(x).shape == (7, num_classes)
    assert torch.allclose(traced(x), head(x), atol=1e-5)


@pytest.mark.parametrize("options", [{"normalise": True}, {"bias": True}, {"reserved": 3}, {"rotation": 0}])
def test_options_of_the_etf_head_meet_it_too(options):
    check_head(small("etf", **options))


def test_many_classes_meet_the_contract():
    check_head(heads.build("maxsep", 12, 500, radius=0.1))


def test_checking_changes_nothing():
    head = small("maxsep")
    before = {name: value.clone() for name, value in head.state_dict().items()}
    state = torch.get_rng_state()
    check_head(head)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


class Broken(nn.Module):
    """A linear head with one fault, chosen by name."""

    def __init__(self, fault):
        super().__init__()
        self.in_features, self.num_classes, self.fault = 6, 4, fault
        self.layer = nn.Linear(6, 4)
        self.register_buffer("fixed", torch.ones(4))
        if fault == "unused parameter":
            self.spare = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        if self.fault == "flattens":
            x = x.flatten(0, -2)
        logits = self.layer(x) * self.fixed
        if self.fault == "moves" and self.training:
            self.fixed = self.fixed * 0.9
        if self.fault == "mixes the batch" and logits.dim() > 1:
            logits = logits - logits.mean(0)
        if self.fault == "detaches":
            logits = logits.detach() + 0 * self.layer.weight.sum()
        return logits.to(torch.int64) if self.fault == "integers" else logits

    def get_extra_state(self):
        return torch.zeros(())

    def set_extra_state(self, state):
        if self.fault == "cannot load":
            raise RuntimeError("no")


@pytest.mark.parametrize(
    ("fault", "demand"),
    [
        ("flattens", "logits of any leading shape"),
        ("mixes the batch", "samples independent of their batch"),
        ("detaches", "gradient reaches the input"),
        ("unused parameter", "parameter 'spare' gets no gradient"),
        ("moves", "fixed part 'fixed' moved"),
        ("cannot load", "state dict round trip"),
        ("integers", "half precision"),
    ],
)
def test_the_contract_notices(fault, demand):
    with pytest.raises(HeadContractError) as caught:
        check_head(Broken(fault))
    assert demand in str(caught.value)


def test_a_sound_head_of_somebody_else_passes():
    check_head(Broken(None))


def test_a_head_says_its_sizes():
    with pytest.raises(HeadContractError, match="Linear has no whole number 'num_classes'"):
        check_head(nn.Linear(3, 4))


def test_the_contract_notices_a_head_that_cannot_be_compiled_or_copied():
    class Uncompilable(Broken):
        def forward(self, x):
            print(end="", flush=True)
            torch._dynamo.graph_break()
            return super().forward(x)

    with pytest.raises(HeadContractError, match=r"(?s)copies and pickles.*compiles"):
        check_head(Uncompilable(None), compile=True)  # a local class cannot be pickled either
