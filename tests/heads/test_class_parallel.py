"""Classes spread over real processes give what one process gives."""

import copy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed

from maxsep import MaxSeparationHead, check_head
from maxsep.heads import ClassParallelHead
from maxsep.surgery import load_shards, save_shards

SCRIPT = Path(__file__).with_name("class_parallel_ranks.py")
BATCH, WIDTH = 6, 5


def launch(ranks, folder):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-W", "error", SCRIPT]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), port, folder], stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    told = [process.communicate(timeout=240)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(told)
    return [torch.load(folder / f"{ranks}-{rank}.pt") for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder):
    return {3: launch(3, folder), 2: launch(2, folder)}  # in this order: two ranks go on where three stopped


@pytest.fixture
def alone(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(params=[2, 3])
def found(request, results):
    return results[request.param]


pytestmark = pytest.mark.distributed


def test_loss_and_gradients_are_those_of_one_process(found):
    for result in found:
        assert max(result["losses"]) <= 1e-12, result["losses"]


def test_any_loss_of_the_gathered_logits(found):
    for result in found:
        assert max(result["logits"]) <= 1e-12, result["logits"]


def test_each_rank_with_its_own_samples(found):
    for result in found:
        assert max(result["parts"]) <= 1e-12, result["parts"]
        assert result["parts of logits"] <= 1e-12


def test_a_network_in_ddp_takes_the_path_of_one_process(found):
    assert max(result["ddp"] for result in found) <= 1e-12


def test_predictions_without_gathering_the_logits(found):
    assert max(max(result["predictions"]) for result in found) <= 1e-12


def test_half_precision_is_summed_in_float32(found):
    for result in found:
        for case in result["half precision"].values():
            assert case["dtypes"] == [torch.float32, torch.bfloat16, torch.bfloat16]
            assert case["difference"] <= 2e-6


def test_one_collective_call_forward_and_none_but_the_usual_backward(found):
    ranks = len(found)
    for result in found:
        _, forward, backward, alone, nothing, parts_forward, parts_backward, predict = result["counts"]
        assert forward == alone == [("all_gather", 3 * BATCH)]
        assert backward == [("all_reduce", WIDTH * BATCH)]
        assert nothing == []
        samples = [("all_gather", BATCH), ("all_gather", WIDTH * BATCH)]
        assert parts_forward == [*samples, ("all_gather", 3 * BATCH * ranks)]
        assert parts_backward == [("reduce_scatter", WIDTH * BATCH * ranks)]
        assert predict == [("all_gather", 5 * BATCH)]


def test_sizes_are_compared_in_the_first_call_or_in_each_if_asked_to(found):
    size, loss = ("all_gather", 1), ("all_gather", 3 * BATCH)
    for result in found:
        (head, parts, topk, once, again), *_ = result["counts"]
        assert head == once == again == [size, loss]
        assert parts[0] == size
        assert len(parts) == 4
        assert topk == [size, ("all_gather", 5 * BATCH)]


def test_one_seed_gives_every_rank_other_rows(found):
    first, second = (result["start"]["rows"] for result in found[:2])
    assert not torch.isin(first, second).any()
    assert all(torch.equal(result["start"]["next"], found[0]["start"]["next"]) for result in found)


def test_a_group_of_some_ranks(results):
    *members, outside = (result["group"] for result in results[3])
    assert max(members) <= 1e-12
    assert outside == "rank 2 is not in the group that was given. Build the head on the ranks of its group only."


def test_training_goes_on_at_another_number_of_ranks(results, folder, alone):
    for result in results[2]:
        assert result["checkpoint"]["difference"] <= 1e-12
    expected = results[2][0]["checkpoint"]["whole"]
    plain, single = MaxSeparationHead(WIDTH, 11).double(), ClassParallelHead(WIDTH, 11).double()
    optimiser = torch.optim.Adam(plain.parameters())
    load_shards(folder / "two", plain, optimiser=optimiser)
    load_shards(folder / "two", single)
    for head in (plain, single):
        torch.testing.assert_close(head.weight.detach(), expected["weight"], atol=1e-12, rtol=0)
        torch.testing.assert_close(head.bias.detach(), expected["bias"], atol=1e-12, rtol=0)
    assert optimiser.state[plain.weight]["step"] == 2
    assert optimiser.state[plain.weight]["exp_avg"].abs().min() > 0


def test_a_problem_of_one_rank_is_told_on_all(results):
    for result in results[2]:
        foreign, damaged, odd = result["refusals"]
        assert foreign.startswith("ValueError: ")
        assert foreign.endswith("it is not overwritten. Choose another name.")
        assert "rows-0-5.safetensors is damaged: it was written with" in damaged
        assert odd.startswith("ValueError: the optimiser keeps 'odd' of shape (3,) for 'weight' of shape (5, 5), which")


def test_it_meets_the_contract_of_a_head(alone):
    check_head(ClassParallelHead(12, 5))
    check_head(ClassParallelHead(12, 5, data_parallel=True, bias=False))


def test_empty_batches_and_meta_parameters(alone):
    head = ClassParallelHead(4, 3)
    assert head.loss(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64), reduction="sum") == 0
    assert ClassParallelHead(4, 3, device="meta").weight.is_meta


def test_state_dicts_say_whose_they_are(alone, tmp_path):
    whole, head = MaxSeparationHead(4, 7, 0.1), ClassParallelHead(4, 7, 0.1)
    head.load_full_state_dict(whole.state_dict())
    assert torch.equal(head.to_head().weight, whole.weight)
    other = ClassParallelHead(4, 7, 0.1)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.weight, head.weight)
    state = copy.deepcopy(head.state_dict())
    assert state["_extra_state"].tolist() == [7, 0.1, 0, 7]
    state["_extra_state"][3] = 4
    with pytest.raises(ValueError, match=r"holds classes 0 to 3, but rank 0 of 1 owns classes 0 to 6\. What maxsep"):
        head.load_state_dict(state)
    with pytest.raises(ValueError, match=r"that of a whole head, with all rows\. Use load_full_state_dict"):
        head.load_state_dict(whole.state_dict())
    with pytest.raises(ValueError, match="one rank's part of a ClassParallelHead"):
        whole.load_state_dict(head.state_dict())
    with pytest.raises(ValueError, match=r"trained at radius 0\.1"):
        ClassParallelHead(4, 7).load_full_state_dict(whole.state_dict())
    with pytest.raises(ValueError, match=r"loads \['weight'\], got \['bias', 'weight'\]"):
        ClassParallelHead(4, 7, 0.1, bias=False).load_full_state_dict(whole.state_dict())
    with pytest.raises(ValueError, match=r"'weight' must be \(6, 4\), the rows of all ranks, got \(5, 4\)"):
        head.load_full_state_dict({"weight": torch.zeros(5, 4), "bias": torch.zeros(6)})


def test_folders_say_what_does_not_fit(alone, tmp_path):
    save_shards(ClassParallelHead(4, 7), tmp_path / "head")
    with pytest.raises(ValueError, match=r"a head with num_classes=7, this one has 8\. Build it alike"):
        load_shards(tmp_path / "head", MaxSeparationHead(4, 8))
    head = MaxSeparationHead(4, 7)
    with pytest.raises(ValueError, match=r"was saved without optimiser="):
        load_shards(tmp_path / "head", head, optimiser=torch.optim.Adam(head.parameters()))
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        load_shards(tmp_path / "nowhere", ClassParallelHead(4, 7))
    with pytest.raises(TypeError, match=r"save_shards writes a ClassParallelHead, got MaxSeparationHead"):
        save_shards(head, tmp_path / "plain")
    with pytest.raises(TypeError, match=r"load_shards reads into a ClassParallelHead or a MaxSeparationHead, got Lin"):
        load_shards(tmp_path / "head", torch.nn.Linear(4, 7))
    from maxsep import save

    save(head, tmp_path / "model")
    with pytest.raises(ValueError, match=r"was not written by save_shards\. Read what maxsep.save wrote with"):
        load_shards(tmp_path / "model", head)


def test_without_a_process_group():
    with pytest.raises(RuntimeError, match=r"not initialised\. Start the processes with torchrun and call torch.distr"):
        ClassParallelHead(4, 3)


@pytest.mark.parametrize(
    ("x", "target", "options", "error", "told"),
    [
        (torch.zeros(2, 4), [0, 1], {}, TypeError, "target must be a tensor of class indices, got list"),
        (torch.zeros(2, 4), torch.zeros(2), {}, TypeError, r"torch.int64, got torch.float32"),
        (torch.zeros(2, 4), torch.tensor([0, 7]), {}, ValueError, "0 to 6, or -100 for a .* got 7 at position 1"),
        (torch.zeros(2, 4), torch.tensor([-1, 0]), {}, ValueError, "got -1 at position 0"),
        (torch.zeros(2, 4), torch.zeros(3).long(), {}, ValueError, r"got shapes \(2, 4\) and \(3,\)\. Flatten"),
        (torch.zeros(2, 5), torch.zeros(2).long(), {}, ValueError, "must be in_features = 4, got shape"),
        (torch.zeros(2, 4).long(), torch.zeros(2).long(), {}, TypeError, "real floating-point tensor"),
        (
            torch.zeros(2, 4),
            torch.zeros(2).long(),
            {"reduction": "max"},
            ValueError,
            "one of mean, sum, none, got 'max'",
        ),
        (torch.zeros(2, 4), torch.zeros(2).long(), {"label_smoothing": 2}, ValueError, "number from 0 to 1, got 2"),
        (
            torch.zeros(2, 4),
            torch.zeros(2).long(),
            {"weight": torch.ones(6)},
            ValueError,
            r"weight must be \(7,\), one",
        ),
    ],
)
def test_wrong_input_is_refused(alone, x, target, options, error, told):
    with pytest.raises(error, match=told):
        ClassParallelHead(4, 7).loss(x, target, **options)


def test_a_label_that_cannot_be_looked_at_makes_the_loss_nan(alone, monkeypatch):
    """As on a GPU, where the check would make the host wait."""
    head = ClassParallelHead(4, 7)
    monkeypatch.setattr(head, "_check_loss", lambda *_: None)
    assert head.loss(torch.zeros(3, 4), torch.tensor([0, 7, 1])).isnan()
    values = head.loss(torch.zeros(3, 4), torch.tensor([0, -1, -100]), reduction="none")
    assert values.isnan().tolist() == [False, True, False]
    assert values[2] == 0


def test_too_many_predictions_are_refused(alone):
    with pytest.raises(ValueError, match="k must be at most the number of classes, 7, got 8"):
        ClassParallelHead(4, 7).topk(torch.zeros(2, 4), 8)


UNEVEN = """
import sys, torch
from torch import distributed
from maxsep.heads import ClassParallelHead
rank, place, how, steps = int(sys.argv[1]), sys.argv[2], sys.argv[3], [int(size) for size in sys.argv[4].split(",")]
distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
head = ClassParallelHead(4, 7, data_parallel="parts" in how, validate="validate" in how)
for size in steps:
    if "topk" in how:
        head.topk(torch.randn(1, size, 4))
    else:
        head.loss(torch.randn(size, 4), torch.zeros(size, dtype=torch.long))
"""


def uneven(folder, how, *sizes):
    """What two ranks with these batches of each step end with."""
    command = [sys.executable, "-c", UNEVEN]
    processes = [
        subprocess.Popen(
            [*command, str(rank), f"file://{folder}/ranks", how, ",".join(map(str, steps))],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, steps in enumerate(sizes)
    ]
    told = [process.communicate(timeout=120)[1] for process in processes]
    assert all(process.returncode for process in processes)
    return told


@pytest.mark.parametrize(
    ("how", "sizes"),
    [
        ("parts", [[3], [2]]),
        ("whole", [[3], [2]]),
        ("parts topk", [[2], [3]]),
        ("parts validate", [[3, 3], [3, 2]]),
    ],
)
def test_batches_of_other_sizes_are_an_error_on_every_rank(tmp_path, how, sizes):
    first, second = (steps[-1] for steps in sizes)
    for told in uneven(tmp_path, how, *sizes):
        assert (
            f"ValueError: every rank must pass as many samples as the others, got {first}, {second} on ranks 0" in told
        )
        assert "Drop an incomplete last batch (drop_last=True), or fill it up with samples whose target is ign" in told


def test_the_rank_that_outlives_batches_of_other_sizes_says_what_may_be_the_matter(tmp_path):
    told, _ = uneven(tmp_path, "parts", [3, 3], [3, 2])
    assert "rank 0 of 2 could not gather tensors of shape (" in told
    assert "Every rank must pass as many samples as the others: drop an incomplete last batch (drop_last=True)" in told
    assert "ClassParallelHead(validate=True) tells all ranks which had others" in told


def test_the_head_says_that_it_validates(alone):
    assert repr(ClassParallelHead(4, 7, validate=True)).endswith("rank 0 of 1, validate=True)")
