"""What every loss promises: precision, devices, ignored and impossible labels, compiled code, casts and copies."""

import copy
import io
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from maxsep.losses import LogitAdjustedLoss
from maxsep.losses.base import ClassLoss

NO_COSINES = pytest.mark.filterwarnings("ignore:LDAMLoss got a logit")


def test_gradients_are_right(build, batch):
    loss = build()
    x, target = batch(loss, dtype=torch.float64)
    target[2] = -100
    assert torch.autograd.gradcheck(lambda x: loss(x, target), x.requires_grad_())


@pytest.mark.parametrize("label", [0, -100])
def test_reductions_are_those_of_torch(build, batch, label):
    loss = build()
    x, target = batch(loss, dtype=torch.float64)
    target[1] = label
    weights = getattr(loss, "weight", torch.ones(4, dtype=torch.float64))
    mean = loss(x, target)
    loss.reduction = "none"
    each = loss(x, target)
    assert each.shape == target.shape
    assert (each[1] == 0) == (label == -100)
    for row, value in enumerate(each):  # a sample does not know its neighbours
        assert torch.allclose(loss(x[row : row + 1], target[row : row + 1]), value)
    loss.reduction = "sum"
    assert torch.allclose(loss(x, target), each.sum())
    assert torch.allclose(mean, each.sum() / weights[target[target >= 0]].sum())


@pytest.mark.parametrize(("reduction", "expected"), [("sum", torch.zeros(())), ("none", torch.zeros(0))])
def test_an_empty_batch_has_a_sum_but_no_mean(build, reduction, expected):
    loss = build()
    loss.reduction = reduction
    assert torch.equal(loss(torch.zeros(0, loss.width), torch.zeros(0, dtype=torch.long)), expected)


def test_reductions_are_checked_and_shown():
    assert repr(LogitAdjustedLoss([3, 1], reduction="sum")) == (
        "LogitAdjustedLoss(num_classes=2, reduction=sum, tau=1)"
    )
    with pytest.raises(ValueError, match=r"reduction must be one of mean, sum, none, got 'average'. Choose one"):
        LogitAdjustedLoss([3, 1], reduction="average")


@NO_COSINES
@pytest.mark.parametrize("size", [1e4, -1e4, 0.0])
def test_extreme_inputs_stay_finite(build, size):
    loss = build()
    x = torch.zeros(4, loss.width)
    x[:, 0] = size
    x.requires_grad_()
    value = loss(x, torch.arange(4))
    value.backward()
    assert value.isfinite()
    assert x.grad.isfinite().all()


@NO_COSINES
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(build, batch, dtype):
    loss = build()
    x, target = batch(loss, dtype=dtype)
    x = (x * 100).requires_grad_()
    value = loss(x, target)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(x.float(), target))
    value.backward()
    assert x.grad.dtype == dtype


def test_autocast_changes_nothing(build, batch):
    loss = build()
    x, target = batch(loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(x, target)
    assert torch.equal(inside, loss(x, target))


def test_compiles_whole_and_follows_the_batch_size(build, batch):
    torch.compiler.reset()
    loss = build()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for size in (6, 3):
        x, target = batch(loss, size)
        target[0] = -100
        expected = loss(x.requires_grad_(), target)
        expected.backward()
        gradient, x.grad = x.grad, None
        value = compiled(x, target)
        value.backward()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(x.grad, gradient)


def test_ignored_samples_count_as_absent(build, batch):
    loss = build()
    x, target = batch(loss, dtype=torch.float64)
    ignored = target.clone()
    ignored[[1, 4]] = -100
    kept = torch.tensor([0, 2, 3, 5])
    torch.testing.assert_close(loss(x, ignored), loss(x[kept], target[kept]))


def test_a_batch_of_ignored_samples_has_no_loss_and_no_gradient(build, batch):
    loss = build()
    x, target = batch(loss)
    value = loss(x.requires_grad_(), torch.full_like(target, -100))
    value.backward()
    assert value.item() == 0
    assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.parametrize("label", [4, -1, -101])
def test_impossible_labels_raise_on_the_cpu(build, batch, label):
    loss = build()
    x, target = batch(loss)
    target[3] = label
    with pytest.raises(ValueError, match=rf"from 0 to 3, or -100 .* got {label} at position 3. Check the labels"):
        loss(x, target)


@pytest.mark.parametrize("label", [4, -1])
def test_impossible_labels_where_nobody_looks_give_nan(build, batch, label):
    torch.compiler.reset()
    loss = build()
    x, target = batch(loss)
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert compiled(x, target).isfinite()
    target[3] = label
    assert compiled(x, target).isnan()


def test_samples_can_be_mapped_one_by_one(build, batch):
    loss = build()
    x, target = batch(loss)

    def single(x, target):
        return loss(x[None], target[None])

    gradients = torch.func.vmap(torch.func.grad(single))(x, target)
    expected = torch.stack([torch.func.grad(single)(*pair) for pair in zip(x, target, strict=True)])
    torch.testing.assert_close(gradients, expected)


def test_tracers_without_values_pass(build, batch):
    loss = build()
    x, target = batch(loss)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert loss(mode.from_tensor(x), mode.from_tensor(target)).shape == ()


def test_casts_do_not_round_the_constants(build, batch):
    loss = build()
    x, target = batch(loss, dtype=torch.float64)
    expected = loss(x, target)
    for cast in (torch.nn.Module.half, torch.nn.Module.float, torch.nn.Module.bfloat16):
        inside = cast(torch.nn.Sequential(loss))[0]
        assert torch.equal(inside(x, target), expected)


def test_empty_copies_get_their_constants_back(build, batch):
    x, target = batch(build(), dtype=torch.float64)
    expected = build()(x, target)
    with torch.device("meta"):
        made_on_meta = build()
    for loss in (made_on_meta, build().to("meta"), build()):
        assert torch.equal(loss.to_empty(device="cpu")(x, target), expected)


def test_copies_and_files_keep_the_loss(build, batch):
    loss = build()
    x, target = batch(loss)
    file = io.BytesIO()
    torch.save(loss, file)
    file.seek(0)
    for same in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss)), torch.load(file, weights_only=False)):
        assert torch.equal(same(x, target), loss(x, target))
        assert torch.equal(same.to("meta").to_empty(device="cpu")(x, target), loss(x, target))


def test_nothing_is_trained_or_saved(build):
    loss = build()
    assert not loss.state_dict()
    assert not list(loss.parameters())
    loss.load_state_dict({})


def test_a_loss_that_was_not_moved_follows_the_logits(build):
    loss = build()
    x = torch.zeros(2, loss.width, device="meta")
    assert loss(x, torch.zeros(2, dtype=torch.int64, device="meta")).device.type == "meta"


def test_parameters_of_a_subclass_are_cast_as_ever():
    class Learned(ClassLoss):
        num_classes = width = 2

        def __init__(self):
            super().__init__()
            self.temperature = torch.nn.Parameter(torch.ones(()))
            self._keep("_constant_of_mine", torch.full((), 1 / 3, dtype=torch.float64))

    loss = Learned().half()
    assert loss.temperature.dtype == torch.float16
    assert loss._constant_of_mine.item() == 1 / 3
    with pytest.raises(NotImplementedError, match="Learned must define _values"):
        loss(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))


def test_losses_say_what_they_are(build):
    assert "num_classes=4" in repr(build())


def test_the_order_of_samples_does_not_matter(build, batch):
    loss = build()
    x, target = batch(loss, dtype=torch.float64)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(loss(x[order], target[order]), loss(x, target), rtol=1e-14, atol=0)
