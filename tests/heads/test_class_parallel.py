"""Classes spread over real processes give what one process gives."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from contract import check_head
from torch import distributed
from torch.distributed import checkpoint

from maxsep import MaxSeparationHead
from maxsep.heads import ClassParallelHead

SCRIPT = Path(__file__).with_name("class_parallel_rank.py")
BATCH, WIDTH = 6, 5
pytestmark = pytest.mark.distributed


def launch(ranks, folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(rank), str(ranks), port, folder], stderr=subprocess.PIPE, text=True
        )
        for rank in range(ranks)
    ]
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(errors)
    return [torch.load(folder / f"{ranks}-{rank}.pt") for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder):
    return {2: launch(2, folder), 3: launch(3, folder)}  # three ranks load what two saved


@pytest.fixture(params=[2, 3])
def ranks(request, results):
    return results[request.param]


@pytest.fixture
def alone(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("call", [lambda head, x: head.loss(x, torch.arange(BATCH)), lambda head, x: head(x).sum()])
def test_second_derivatives_are_refused(alone, call):
    x = torch.randn(BATCH, WIDTH, requires_grad=True)
    with pytest.raises(RuntimeError, match="first derivatives"):
        torch.autograd.grad(call(ClassParallelHead(WIDTH, 11), x), x, create_graph=True)


def test_values_and_gradients_are_those_of_one_process(ranks):
    for result in ranks:
        for name, distances in result["distances"].items():
            assert max(distances, default=0) <= 1e-12, (name, distances)


def test_half_precision_is_summed_in_float32(ranks):
    assert max(result["half precision"] for result in ranks) <= 2e-6


def test_one_seed_gives_every_rank_different_rows(ranks):
    first, second = (result["start"]["rows"] for result in ranks[:2])
    assert not torch.isin(first, second).any()
    assert all(torch.equal(result["start"]["next"], ranks[0]["start"]["next"]) for result in ranks)


@pytest.mark.filterwarnings("ignore:.*torch.distributed is.*:UserWarning")  # a MaxSeparationHead needs no ranks
def test_a_checkpoint_of_two_ranks_loads_on_three_and_on_one(results, folder):
    saved = results[2][0]["checkpoint"]
    for result in results[3]:
        assert all(torch.equal(result["checkpoint"][name], saved[name]) for name in saved)
        assert result["checkpoint"]["distance"] <= 1e-12
    whole = MaxSeparationHead(WIDTH, 11).double()
    state = {"head": whole.state_dict()}
    checkpoint.load(state, checkpoint_id=folder / "two", no_dist=True)
    whole.load_state_dict(state["head"])
    assert all(torch.equal(whole.state_dict()[name], saved[name]) for name in saved)


def test_it_meets_the_contract_of_a_head(alone):
    check_head(ClassParallelHead(12, 5))
    check_head(ClassParallelHead(12, 5, data_parallel=True, bias=False))


def test_state_dicts_of_whole_heads(alone):
    whole, head = MaxSeparationHead(4, 7, 0.1), ClassParallelHead(4, 7, 0.1)
    head.load_state_dict(whole.state_dict())
    assert torch.equal(head.to_head().weight, whole.weight)
    assert head.state_dict()["_extra_state"].tolist() == [7, 0.1]
    with pytest.raises(ValueError, match="radius"):
        ClassParallelHead(4, 7).load_state_dict(whole.state_dict())
    with pytest.raises(RuntimeError, match="weight"):
        head.load_state_dict(MaxSeparationHead(5, 7, 0.1).state_dict())


def test_empty_batches_and_meta_parameters(alone):
    head = ClassParallelHead(4, 3)
    assert head.loss(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), reduction="sum") == 0
    assert ClassParallelHead(4, 3, device="meta").weight.is_meta


def test_it_needs_a_process_group():
    with pytest.raises(ValueError, match="init_process_group"):
        ClassParallelHead(4, 3)


@pytest.mark.parametrize(
    ("x", "target", "options", "error", "argument"),
    [
        (torch.zeros(2, 4), [0, 1], {}, TypeError, "target"),
        (torch.zeros(2, 4), torch.tensor([0, 7]), {}, ValueError, "target"),
        (torch.zeros(2, 5), torch.zeros(2).long(), {}, ValueError, "in_features"),
        (torch.zeros(2, 4), torch.zeros(2).long(), {"weight": torch.ones(6)}, ValueError, "weight"),
    ],
)
def test_wrong_input_is_refused(alone, x, target, options, error, argument):
    with pytest.raises(error, match=argument):
        ClassParallelHead(4, 7).loss(x, target, **options)


UNEVEN = """
import sys, torch
from torch import distributed
from maxsep.heads import ClassParallelHead
rank, place, validate, sizes = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "validate", eval(sys.argv[4])
distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
head = ClassParallelHead(4, 7, data_parallel=True, validate=validate)
for size in sizes:
    head.loss(torch.randn(size, 4), torch.zeros(size, dtype=torch.long))
"""


@pytest.mark.parametrize(("mode", "sizes"), [("first", [[3], [2]]), ("validate", [[3, 3], [3, 2]])])
def test_batches_of_different_sizes_are_an_error_on_every_rank(tmp_path, mode, sizes):
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", UNEVEN, str(rank), f"file://{tmp_path}/ranks", mode, repr(steps)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, steps in enumerate(sizes)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert all("ValueError: x must have as many samples on every rank, got [3, 2]" in error for error in errors)
