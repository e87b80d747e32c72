import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.lab.data import long_tail_counts
from maxsep.lab.engine.trainer import Order, class_balanced
from maxsep.lab.spec import RunSpec

LABELS = torch.tensor([0] * 20 + [1] * 5 + [3] * 1)  # class 2 has no image


def test_instance_sampling_is_a_permutation_with_a_short_last_batch():
    order = Order(RunSpec(batch_size=8), LABELS)
    drawn = order.draw(0, torch.Generator().manual_seed(1))
    assert torch.equal(drawn, torch.randperm(26, generator=torch.Generator().manual_seed(1)))
    assert (order.steps, order.images, order.sizes().tolist()) == (4, 26, [8, 8, 8, 2])


@pytest.mark.parametrize(("imbalance", "steps"), [(0.1, 154), (0.02, 100), (0.01, 86)])
def test_balanced_epochs_have_one_full_batch_more(imbalance, steps):
    counts = long_tail_counts(500, 100, imbalance)
    labels = torch.repeat_interleave(torch.arange(100), torch.tensor(counts))
    order = Order(RunSpec(batch_size=128, sampler="class_balanced", epochs=1), labels)
    assert (order.steps, order.images) == (steps, steps * 128)
    assert order.sizes().tolist() == [128.0] * steps


def test_balanced_epochs_are_parts_of_one_sequence_and_draw_from_no_generator():
    spec = RunSpec(batch_size=8, sampler="class_balanced", epochs=3, seed=5)
    order, again = Order(spec, LABELS), Order(spec, LABELS)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    parts = [order.draw(epoch, generator) for epoch in range(3)]
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(again.draw(2, generator), parts[2])  # as after a resume
    assert [len(part) for part in parts] == [40] * 3
    assert not torch.equal(parts[0], parts[1])
    other = Order(spec.replace(seed=6), LABELS)
    assert not torch.equal(other.draw(0, generator), parts[0])


@given(seed=st.integers(0, 1000), turns=st.integers(1, 12))
def test_classes_take_turns_of_four_and_lists_are_used_up_before_they_repeat(seed, turns):
    drawn = class_balanced(LABELS, turns * 12, seed)
    groups = LABELS[drawn].view(turns, 3, 4)
    assert torch.equal(groups, groups[:, :, :1].expand(-1, -1, 4))
    assert all(sorted(row.tolist()) == [0, 1, 3] for row in groups[:, :, 0])
    for label, size in ((0, 20), (1, 5), (3, 1)):
        mine = drawn[LABELS[drawn] == label]
        for whole in mine[: len(mine) // size * size].view(-1, size):
            assert len(set(whole.tolist())) == size
