"""Classes spread over real processes give what one process gives."""

import copy

import pytest
import torch
from contract import check_head
from ranks import launch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from maxsep import MaxSeparationHead
from maxsep.heads import ClassParallelHead
from maxsep.losses import fused_cross_entropy

BATCH, WIDTH = 6, 5
pytestmark = pytest.mark.distributed


def run(script, ranks, folder):
    codes, errors = launch(script, ranks, folder)
    assert codes == [0] * ranks, "\n".join(errors)
    return [torch.load(folder / f"{ranks}-{rank}.pt") for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder):
    return {ranks: run("class_parallel_rank.py", ranks, folder) for ranks in (2, 3)}  # three ranks load what two saved


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


def test_heads_that_are_drawn_one_after_another_differ(alone):
    head, drawn = ClassParallelHead(4, 7), set()
    for _ in range(128):
        head.reset_parameters()
        drawn.add(tuple(head.weight.to_local().flatten().tolist()))
    assert len(drawn) == 128


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


@pytest.mark.parametrize(
    "call", ["loss", "forward", "topk", "shared", "mesh", "copies", "compiled", "size", "label", "dtype"]
)
def test_uneven_batches_and_wrong_ones_are_an_error_on_every_rank_in_the_step_that_has_them(call):
    """Exit code 7: an error of ours in the third step, after two even ones. A hang or an abort has another code."""
    codes, errors = launch("uneven_rank.py", 2, call, timeout=100)
    assert codes == [7, 7], errors


@pytest.mark.parametrize("ranks", [2, 4])
def test_weights_that_torch_shards_train_as_in_one_process(ranks, tmp_path):
    """Two ranks with FSDP2 and with tensor-parallel weights, four with a mesh of copies and classes; for 20 steps."""
    for distances in run("sharded_rank.py", ranks, tmp_path):
        assert max(distances.values()) <= 1e-12, distances


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = MaxSeparationHead(WIDTH, 11)

    def forward(self, x, target):
        return fused_cross_entropy(self.head, x, target)


def test_the_fused_loss_runs_inside_a_sharded_unit_and_refuses_a_sharded_head(alone):
    whole, x, target = WithLoss(), torch.randn(BATCH, WIDTH), torch.arange(BATCH)
    model, head = fully_shard(copy.deepcopy(whole)), fully_shard(copy.deepcopy(whole.head))
    model(x, target).backward()
    whole(x, target).backward()
    torch.testing.assert_close(model.head.weight.grad.full_tensor(), whole.head.weight.grad)
    head(x)  # a root keeps its weights whole, but gradients that no hook reduces are lost
    with pytest.raises(TypeError, match="head"):
        fused_cross_entropy(head, x, target)


@pytest.mark.parametrize("name", ["x", "target"])
def test_the_fused_loss_names_what_is_a_dtensor(name, alone):
    inputs = {"x": torch.randn(BATCH, WIDTH), "target": torch.arange(BATCH)}
    inputs[name] = distribute_tensor(inputs[name], init_device_mesh("cpu", (1,)))
    for head in (MaxSeparationHead(WIDTH, 11), nn.Linear(WIDTH, 11)):
        with pytest.raises(TypeError, match=f"^{name} .*DTensor"):
            fused_cross_entropy(head, **inputs)


def test_a_mesh_has_a_dimension_for_copies_and_one_for_classes(alone):
    with pytest.raises(ValueError, match="group"):
        ClassParallelHead(4, 7, group=init_device_mesh("cpu", (1,)))
