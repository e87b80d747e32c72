"""The order of images, one training step and its checks."""

import pickle
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from waiting import NoWaiting

from maxsep.lab.data import ImageSet, augmentation, long_tail_counts
from maxsep.lab.engine import NonFiniteError
from maxsep.lab.engine.model import derive
from maxsep.lab.engine.optim import build_optimiser, learning_rate
from maxsep.lab.engine.step import CompiledAugmentation, Order, Step, check_losses, class_balanced
from maxsep.lab.spec import RunSpec
from maxsep.losses import mixup

LABELS = torch.tensor([0] * 20 + [1] * 5 + [3] * 1)  # class 2 has no image
INF, NAN = float("inf"), float("nan")


def test_instance_sampling_is_a_permutation_with_a_short_last_batch():
    order = Order(RunSpec(batch_size=8), LABELS)
    drawn = order.draw(0, torch.Generator().manual_seed(1))
    assert torch.equal(drawn, torch.randperm(26, generator=torch.Generator().manual_seed(1)))
    assert (order.steps, order.images, order.sizes().tolist()) == (4, 26, [8, 8, 8, 2])


@pytest.mark.parametrize(("imbalance", "steps"), [(0.1, 154), (0.02, 100), (0.01, 86)])
def test_balanced_epochs_have_one_full_batch_more(imbalance, steps):
    labels = torch.repeat_interleave(torch.arange(100), torch.tensor(long_tail_counts(500, 100, imbalance)))
    order = Order(RunSpec(batch_size=128, sampler="class_balanced", epochs=1), labels)
    assert (order.steps, order.images, order.sizes().tolist()) == (steps, steps * 128, [128.0] * steps)


def test_balanced_epochs_are_parts_of_one_sequence_that_needs_no_generator():
    spec = RunSpec(batch_size=8, sampler="class_balanced", epochs=3, seed=5)
    parts = [Order(spec, LABELS).draw(epoch, None) for epoch in range(3)]
    assert torch.equal(torch.cat(parts), class_balanced(LABELS, 120, derive(5, "balanced order")))
    short = Order(spec.replace(stop_after=1), LABELS)
    assert torch.equal(short.draw(0, None), parts[0]), "a run that stops early sees what the whole one sees"
    assert not torch.equal(Order(spec.replace(seed=6), LABELS).draw(0, None), parts[0])


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


def make(rank=0, world=1, device="cpu", seen=None, loss=F.cross_entropy, **fields):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    images = ImageSet(torch.arange(40, dtype=torch.uint8).view(10, 1, 2, 2), torch.arange(10) % 3, ("a", "b", "c"))
    fabric = SimpleNamespace(
        device=torch.device(device),
        world_size=world,
        global_rank=rank,
        backward=lambda loss: loss.backward(),
        all_reduce=lambda tensor, reduce_op: tensor,
    )

    def augment(batch, generator):
        if seen is not None:
            seen.append(batch[:, 0, 0, 0].tolist())
        return batch.double() / 40

    generators = torch.Generator(), torch.Generator().manual_seed(5)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5)
    return Step(RunSpec(**fields), fabric, network, network, optimiser, loss, images, augment, generators)


def test_a_step_trains_on_the_asked_images_with_the_asked_rate():
    seen = []
    step = make(seen=seen)
    before = step.network[1].weight.detach().clone()
    step.at(0, 0, 0.0)
    step(torch.tensor([7, 2]))
    assert seen == [[28, 8]]
    assert torch.equal(step.network[1].weight, before)
    step.at(0, 1, 0.25)
    assert not step(torch.tensor([7, 2])).requires_grad
    assert not torch.equal(step.network[1].weight, before)


@pytest.mark.parametrize("size", [1, 2, 5, 10])
def test_the_mean_over_processes_is_the_mean_over_images(size):
    def gradient(rank, world):
        step = make(rank, world)
        step.at(0, 0, 0.1)
        loss = step(torch.arange(size))
        return step.network[1].weight.grad, loss

    whole, loss = gradient(0, 1)
    parts = [gradient(rank, 3) for rank in range(3)]
    torch.testing.assert_close(torch.stack([grad for grad, _ in parts]).mean(0), whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.stack([part for _, part in parts]).mean(), loss, rtol=1e-12, atol=1e-14)


def test_mixup_mixes_images_and_losses_by_one_share():
    step = make(mixup=1.0)
    step.network.float()
    step.at(0, 0, 0.0)
    indices = torch.tensor([7, 2, 5, 0, 9, 4])
    images, labels = step.images.images[indices] / 40, step.images.labels[indices]
    x, first, second, share = mixup(images, labels, 1.0, torch.Generator().manual_seed(5))
    logits = step.network(x)
    expected = share * F.cross_entropy(logits, first) + (1 - share) * F.cross_entropy(logits, second)
    torch.testing.assert_close(step(indices), expected)
    assert 0 < share < 1
    assert not torch.equal(first, second)


@pytest.mark.parametrize("limit", [0.0, 0.01, 1e6])
def test_gradients_are_clipped_to_the_norm(limit):
    step, free = make(clip_norm=limit), make()
    for each in (step, free):
        each.at(0, 0, 0.1)
        each(torch.arange(6))
    clipped, whole = (torch.cat([p.grad.flatten() for p in each.network.parameters()]) for each in (step, free))
    norm = limit if 0 < limit < whole.norm() else whole.norm()
    torch.testing.assert_close(clipped, whole * norm / whole.norm(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("fields", "at", "message"),
    [
        ({}, (2, 7), r"nan.*2 of 3 images.*\[8, 9\].*epoch 3/20, step 8.*learning rate 0.1"),
        ({}, (0, 0), "first step"),
        ({"radius": 8.0}, (2, 7), "radius 8"),
    ],
)
def test_a_loss_that_is_not_finite_names_step_images_and_cause(fields, at, message):
    step = make(loss=lambda logits, target: logits.sum() * NAN, **fields)
    step.model = lambda images: torch.tensor([[0.0, 1.0], [NAN, 0.0], [INF, 0.0]]).requires_grad_()
    step.at(*at, 0.1)
    with pytest.raises(NonFiniteError, match=message) as caught:
        step(torch.tensor([7, 8, 9]))
    assert (caught.value.epoch, caught.value.step) == at
    again = pickle.loads(pickle.dumps(caught.value))  # between processes
    assert (str(again), again.epoch, again.step) == (str(caught.value), *at)


@pytest.mark.parametrize(("value", "bad"), [(INF, True), (3e38, False)])
def test_the_first_gradient_that_is_not_finite_is_named(value, bad):
    step = make()
    step.network.float()
    step.fabric.backward = lambda loss: [
        p.__setattr__("grad", torch.full_like(p, value)) for p in step.network.parameters()
    ]
    step.augment = lambda images, generator: images.float()
    step.at(2, 7, 0.0)
    if bad:
        with pytest.raises(NonFiniteError, match=r"1\.weight.*epoch 3/20, step 8"):
            step(torch.arange(3))
    else:
        step(torch.arange(3))  # the sum of these gradients overflows, the gradients do not


def test_an_epoch_of_losses_names_the_first_bad_step():
    check_losses(RunSpec(), torch.ones(3), epoch=0, rate=0.1)
    with pytest.raises(NonFiniteError, match=r"inf at epoch 6/20, step 3\. The likely cause: the learning rate 0\.1"):
        check_losses(RunSpec(), torch.tensor([1.0, 2.0, INF, NAN]), epoch=5, rate=0.1)


def test_a_new_rate_for_every_step_reaches_a_captured_one_without_synchronising():
    step, spec = make(), RunSpec(schedule="cosine_steps", epochs=2, nesterov=True)
    step.network.float()
    step.optimiser = build_optimiser(spec, step.network, capturable=True)
    tensor = step.optimiser.param_groups[0]["lr"]
    expected = [learning_rate(spec, epoch, position, 5) for epoch in range(2) for position in range(5)]
    found = []
    for number, rate in enumerate(expected):
        with NoWaiting():
            step.at(number // 5, number % 5, rate)
        found.append(tensor.item())
    assert step.optimiser.param_groups[0]["lr"] is tensor  # a graph reads this very memory
    assert found == pytest.approx(expected, rel=1e-7)
    assert len(set(found)) == 10


def test_a_step_with_mixup_and_clipping_never_synchronises_on_a_gpu():
    step = make(mixup=1.0, clip_norm=0.1)
    step.network.float()
    step.fabric.device = torch.device("cuda")  # so losses and gradients are not looked at
    step.at(0, 0, 0.1)
    with NoWaiting():
        loss = step(torch.arange(6))
    assert bool(loss.isfinite())


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "aot_eager") for name in ("none", "crop_flip", "crop_flip_rotate", "crop_flip_auto_cutout")),
        *((name, "aot_eager") for name in ("rand_augment_m6", "rand_augment_digits_m18", "resized_crop_flip_jitter")),
        *((name, "inductor") for name in ("crop_flip_auto_cutout", "resized_crop_flip_jitter")),
    ],
)
def test_a_compiled_augmentation_keeps_every_byte(fresh, name, backend):
    images = torch.randint(256, (16, 3, 32, 32), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    eager, compiled = augmentation(name), CompiledAugmentation(augmentation(name), 16, backend)
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    for batch in (images, images[:5], images):  # the short one is not compiled; the generators stay in step
        expected = eager(batch, first)
        assert compiled(batch, second).equal(expected)
        assert name == "none" or not expected.equal(batch)


def test_a_compiler_may_not_contract_products_and_sums(monkeypatch):
    settings = {}
    monkeypatch.setattr(torch, "compile", lambda function, **options: settings.update(options) or function)
    CompiledAugmentation(augmentation("crop_flip"), 16)
    assert settings["options"] == {"emulate_precision_casts": True}  # on a GPU alone the bytes would differ
