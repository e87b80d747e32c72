import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from maxsep.lab.data import augmentation
from maxsep.lab.data.pixel_ops import operate
from maxsep.lab.data.pixel_tables import OPERATIONS, tabulate
from maxsep.lab.data.strong import _POLICY, Strong, StrongDraw, magnitude, operations

EVERYTHING = Strong(policy=True, cutout=True)


def images(count=8, channels=3, seed=0):
    source = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (count, channels, 32, 32), generator=source).to(torch.uint8)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_policy_has_25_pairs_of_known_operations():
    assert len(_POLICY) == 25
    for pair in _POLICY:
        for name, chance, level in pair:
            assert name in OPERATIONS
            assert 0 <= chance <= 1
            assert 0 <= level <= 9


def test_levels():
    assert magnitude("shear_y", 9, 32, 32) == (0.0, 0.3)
    assert magnitude("translate_x", 9, 32, 16)[1] == pytest.approx(14.5015, abs=1e-4)
    assert magnitude("translate_y", 9, 32, 16)[1] == pytest.approx(7.2508, abs=1e-4)
    assert magnitude("brightness", 9, 32, 32) == (1.0, 0.9)
    assert magnitude("solarise", 0, 32, 32) == (256.0, 0.0)
    assert [magnitude("posterise", level, 32, 32)[0] for level in (0, 7, 9)] == [8, 5, 4]


def test_draws_follow_the_policy():
    draw = EVERYTHING.draw(torch.zeros(50_000, 3, 32, 32, dtype=torch.uint8), generator())
    known = operations(32, 32)
    for place in (0, 1):
        counts = torch.bincount(draw.chosen[place], minlength=len(known)) / 50_000
        for name in OPERATIONS[1:]:
            expected = sum(chance for pair in _POLICY for op, chance, _ in [pair[place]] if op == name) / 25
            found = sum(counts[i].item() for i, (op, _) in enumerate(known) if op == name)
            assert found == pytest.approx(expected, abs=0.006), name
    turned = torch.tensor([known[i][1] for i in draw.chosen[0].tolist() if known[i][0] == "rotate"])
    assert turned.abs().unique().tolist() == pytest.approx([30 * 2 / 9])
    assert abs((turned > 0).double().mean().item() - 0.5) < 0.05
    assert (draw.centre.min().item(), draw.centre.max().item()) == (0, 31)


def test_applying_is_the_two_operations_and_the_hole():
    batch = images()
    draw = EVERYTHING.draw(batch, generator(2))
    tables = tabulate(operations(32, 32), 32, 32, batch.device)
    expected = operate(operate(batch, draw.chosen[0], tables), draw.chosen[1], tables)
    hole = Strong(cutout=True).apply(expected, StrongDraw(None, draw.centre))
    assert torch.equal(EVERYTHING(batch, generator(2)), hole)
    assert not torch.equal(EVERYTHING(batch, generator(2)), EVERYTHING(batch, generator(3)))


@pytest.mark.parametrize("name", ["crop_flip_auto", "crop_flip_cutout", "crop_flip_auto_cutout"])
def test_names_come_after_crop_and_flip(name):
    augment, batch, source = augmentation(name), images(), generator(4)
    weak = augmentation("crop_flip")(batch, source)
    assert torch.equal(augment(batch, generator(4)), augment.steps[1](weak, source))
    assert (augment.steps[1].policy, augment.steps[1].cutout) == ("auto" in name, "cutout" in name)


class NoWaiting(TorchDispatchMode):
    """Fails on operations that make the host wait for the device or whose result shape depends on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "lift_fresh"), name
        return function(*args, **(kwargs or {}))


def test_can_be_captured_after_the_first_call():
    batch = images()
    expected = EVERYTHING(batch, generator())
    with NoWaiting():
        result = EVERYTHING(batch, generator())
    assert torch.equal(result, expected)


def test_a_draw_brings_its_tables_along(monkeypatch):
    batch = images()
    draw = EVERYTHING.draw(batch, generator())
    expected = EVERYTHING.apply(batch, StrongDraw(draw.chosen, draw.centre))
    monkeypatch.setattr("maxsep.lab.data.strong._tables", None)
    assert torch.equal(EVERYTHING.apply(batch, draw), expected)


def test_the_hole_is_half_as_wide_as_the_image():
    for size, side in ((32, 16), (8, 4)):
        batch = torch.full((1, 1, size, size), 9, dtype=torch.uint8)
        middle = StrongDraw(None, torch.tensor([[size // 2], [size // 2]]))
        assert (Strong(cutout=True).apply(batch, middle) == 0).sum().item() == side**2


def test_holes_stick_out_of_the_image():
    batch = torch.full((3, 1, 8, 8), 9, dtype=torch.uint8)
    result = Strong(cutout=True).apply(batch, StrongDraw(None, torch.tensor([[4, 0, 7], [4, 0, 7]])))
    assert (result == 0).sum((1, 2, 3)).tolist() == [16, 4, 9]
    assert bool((result[0, 0, 2:6, 2:6] == 0).all())
    assert bool((result[1, 0, :2, :2] == 0).all())
    assert bool((batch == 9).all())


def test_other_channels_are_refused():
    assert EVERYTHING(images(channels=1), generator()).shape == (8, 1, 32, 32)
    with pytest.raises(ValueError, match=r"knows grey and colour images, got 4 channels. Use crop_flip"):
        EVERYTHING(images(channels=4), generator())
