"""The losses for long tails: published numbers, values by hand, and what holds for every loss."""

import collections
import copy
import math
import pickle

import pandas
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.losses import (
    BalancedSoftmaxLoss,
    LabelAwareSmoothingLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    effective_number_weights,
)

COUNTS = [500, 50, 5, 1]
LOSSES = {
    "ldam": lambda counts=COUNTS, **options: LDAMLoss(counts, **options),
    "ldam_weighted": lambda counts=COUNTS, **options: LDAMLoss(
        counts, weight=effective_number_weights(counts, dtype=torch.float64), **options
    ),
    "logit_adjusted": lambda counts=COUNTS, **options: LogitAdjustedLoss(counts, tau=1.5, **options),
    "balanced_softmax": lambda counts=COUNTS, **options: BalancedSoftmaxLoss(counts, **options),
    "label_aware_smoothing": lambda counts=COUNTS, **options: LabelAwareSmoothingLoss(counts, 0.4, 0.1, **options),
}
every_loss = pytest.mark.parametrize("build", LOSSES.values(), ids=LOSSES)
counts_of_classes = st.lists(st.integers(1, 10**6), min_size=2, max_size=30)


def draw(num_classes=4, size=6, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, num_classes, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(num_classes, (size,), generator=generator)


def cifar100(imbalance):
    return [int(500 * imbalance ** (j / 99)) for j in range(100)]


@pytest.mark.parametrize(
    ("imbalance", "margin", "first", "last"),
    [(0.1, 0.28117, 0.2582, 2.5247), (0.02, 0.18803, 0.0789, 3.8494), (0.01, 0.15811, 0.0449, 4.3783)],
)
def test_published_margins_and_weights_of_cifar100(imbalance, margin, first, last):
    margins, weights = LDAMLoss(cifar100(imbalance)).margins, effective_number_weights(cifar100(imbalance))
    assert margins[[0, -1]].tolist() == pytest.approx([margin, 0.5], abs=5e-6)
    assert [*weights[[0, -1]].tolist(), weights.sum().item()] == pytest.approx([first, last, 100], abs=5e-5)


def test_ldam_by_hand():
    loss = LDAMLoss([16, 1], max_margin=0.5, scale=2.0)  # margins 0.5 * (1/16)^(1/4) = 0.25 and 0.5
    cosines, target = torch.tensor([[0.5, -0.5], [0.3, 0.9]], dtype=torch.float64), torch.tensor([0, 1])
    values = [math.log1p(math.exp(2 * -0.5 - 2 * 0.25)), math.log1p(math.exp(2 * 0.3 - 2 * 0.4))]
    assert loss(cosines, target).item() == pytest.approx(sum(values) / 2, abs=1e-14)
    loss.reweight([1.0, 3.0])
    assert loss(cosines, target).item() == pytest.approx((values[0] + 3 * values[1]) / 4, abs=1e-14)


def test_adjusted_and_balanced_softmax_by_hand():
    # priors 0.9 and 0.1; at tau = 2 the odds of class 1 are e^1 * (1/9)^2
    value = LogitAdjustedLoss([90, 10], tau=2.0)(torch.tensor([[0.0, 1.0]], dtype=torch.float64), torch.tensor([1]))
    assert value.item() == pytest.approx(math.log(1 + 81 / math.e), abs=1e-14)
    assert "tau=2" in repr(LogitAdjustedLoss([90, 10], tau=2.0))
    x = torch.tensor([[0.0, 0.0, math.log(5)]], dtype=torch.float64)  # weights 3, 2 and 5 of 10
    values = [BalancedSoftmaxLoss([3, 2, 1])(x, torch.tensor([label])).item() for label in range(3)]
    assert values == pytest.approx([-math.log(0.3), -math.log(0.2), -math.log(0.5)], abs=1e-14)


def test_label_aware_smoothing_by_hand():
    # a third of the way up: sin(pi/6) = 1/2, so the smoothing is halfway between 0.1 and 0.4
    loss = LabelAwareSmoothingLoss([31, 11, 1], smooth_head=0.4, smooth_tail=0.1)
    assert loss.smoothing.tolist() == pytest.approx([0.4, 0.25, 0.1])
    x = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64).log()
    uniform = -(math.log(0.2) + math.log(0.3) + math.log(0.5)) / 3
    expected = [-0.6 * math.log(0.2) + 0.4 * uniform, -0.75 * math.log(0.3) + 0.25 * uniform]
    assert [loss(x, torch.tensor([label])).item() for label in (0, 1)] == pytest.approx(expected, abs=1e-14)
    assert LabelAwareSmoothingLoss([2, 1], 0.4, 0.1).smoothing.tolist() == pytest.approx([0.4, 0.1])
    assert LabelAwareSmoothingLoss([7, 7, 7], 0.4, 0.1).smoothing.tolist() == pytest.approx([0.4] * 3)


def test_effective_numbers_by_hand_and_at_both_ends_of_beta():
    # (1 - 0.5) / (1 - 0.5^n) for n = 1, 2: 1 and 2/3, scaled to sum 2
    assert effective_number_weights([1, 2], 0.5).tolist() == pytest.approx([1.2, 0.8])
    assert effective_number_weights([9, 3, 1], 0).tolist() == [1, 1, 1]
    inverse = effective_number_weights([9, 3, 1], 1 - 2**-53, dtype=torch.float64)
    torch.testing.assert_close(inverse, torch.tensor([1, 3, 9], dtype=torch.float64) * 3 / 13)


@given(counts=counts_of_classes, smoothing=st.floats(0, 1), seed=st.integers(0, 9))
@settings(max_examples=30)
def test_special_cases_are_torchs_cross_entropy(counts, smoothing, seed):
    x, target = draw(len(counts), 7, seed)
    plain, weight = F.cross_entropy(x, target), effective_number_weights(counts, dtype=torch.float64)
    close = torch.testing.assert_close
    close(LogitAdjustedLoss(counts, tau=0)(x, target), plain)
    close(BalancedSoftmaxLoss([counts[0]] * len(counts))(x, target), plain)
    close(LogitAdjustedLoss(counts)(x, target), BalancedSoftmaxLoss(counts)(x, target))
    smoothed = LabelAwareSmoothingLoss(counts, smoothing, smoothing)(x, target)
    close(smoothed, F.cross_entropy(x, target, label_smoothing=smoothing))
    without_margin = LDAMLoss(counts, max_margin=0, scale=3, weight=weight)(x, target)
    close(without_margin, F.cross_entropy(3 * x, target, weight=weight), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mixed_targets_are_class_probabilities_where_cross_entropy_takes_them(reduction):
    x, target = draw()
    mixed = (0.7 * F.one_hot(target, 4) + 0.3 * F.one_hot(target.flip(0), 4)).float()
    for build in (LOSSES["logit_adjusted"], LOSSES["balanced_softmax"]):
        loss = build(reduction=reduction)
        parts = 0.7 * loss(x, target) + 0.3 * loss(x, target.flip(0))
        torch.testing.assert_close(loss(x, mixed), parts, atol=1e-6, rtol=1e-6)
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x, mixed), loss(x, mixed))
        with pytest.raises(ValueError, match="target"):
            loss(x, mixed[:, :3])
    for build in (LOSSES["ldam"], LOSSES["label_aware_smoothing"]):
        with pytest.raises(TypeError, match="target"):
            build(reduction=reduction)(x, mixed)


@every_loss
def test_gradients_and_reductions(build):
    x, target = draw()
    target[2] = -100
    loss, each = build(), build(reduction="none")(x, target)
    assert torch.autograd.gradcheck(lambda x: loss(x, target), x.requires_grad_())
    assert each.shape == (6,)
    assert each[2] == 0
    for row in range(6):
        assert build(reduction="sum")(x[[row]], target[[row]]).item() == pytest.approx(each[row].item())
    assert build(reduction="sum")(x, target).item() == pytest.approx(each.sum().item())
    weight = getattr(loss, "weight", torch.ones(4, dtype=torch.float64))
    assert loss(x, target).item() == pytest.approx((each.sum() / weight[target[target >= 0]].sum()).item())
    kept = target != -100
    torch.testing.assert_close(loss(x, target), loss(x[kept], target[kept]))


@every_loss
def test_all_ignored_and_empty_batches_are_torchs(build):
    x, target = draw()
    ignored = torch.full_like(target, -100)
    assert build()(x, ignored).isnan()
    assert build()(x[:0], target[:0]).isnan()
    assert build(reduction="sum")(x, ignored) == 0
    assert build(reduction="none")(x[:0], target[:0]).shape == (0,)


@every_loss
@pytest.mark.filterwarnings("ignore:LDAMLoss expects cosines")
def test_precision(build):
    loss = build()
    for dtype in (torch.float16, torch.bfloat16):
        x, target = draw(dtype=dtype)
        x = (100 * x).requires_grad_()
        value = loss(x, target)
        value.backward()
        assert (value.dtype, x.grad.dtype) == (torch.float32, dtype)
        assert torch.equal(value, loss(x.float(), target))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(loss(x.float(), target), value)
    x, target = draw()
    expected = loss(x, target)
    assert expected.dtype == torch.float64
    assert torch.equal(copy.deepcopy(loss).half()(x, target), expected)  # constants are not rounded
    extreme = torch.tensor([[1e4, -1e4, 0, 0]], requires_grad=True)
    value = loss(extreme, torch.tensor([1]))
    value.backward()
    assert value.isfinite()
    assert extreme.grad.isfinite().all()


@every_loss
def test_compiles_whole_maps_samples_and_is_pickled(build):
    torch.compiler.reset()
    loss = build()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for size in (6, 3):
        x, target = draw(size=size)
        target[0] = -100
        torch.testing.assert_close(compiled(x, target), loss(x, target))
    x, target = draw(size=3)
    gradient = torch.func.grad(lambda x, y: loss(x[None], y[None]))
    expected = torch.stack([gradient(*pair) for pair in zip(x, target, strict=True)])
    torch.testing.assert_close(torch.func.vmap(gradient)(x, target), expected)
    assert torch.equal(pickle.loads(pickle.dumps(loss))(x, target), loss(x, target))
    assert not loss.state_dict()


@every_loss
def test_follows_the_device_of_the_logits(build):
    x, target = torch.zeros(2, 4, device="meta"), torch.zeros(2, dtype=torch.int64, device="meta")
    assert build()(x, target).device.type == "meta"
    assert all(buffer.is_meta for buffer in build().to("meta").buffers())


@every_loss
@pytest.mark.parametrize("label", [4, -1, -101])
def test_impossible_labels(build, label):
    with pytest.raises(ValueError, match="target"):
        build()(torch.zeros(2, 4), torch.tensor([0, label]))


@pytest.mark.parametrize(
    ("logits", "target", "error"),
    [
        (torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64), ValueError),
        (torch.zeros(3, 4), torch.zeros(2, dtype=torch.int64), ValueError),
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.int32), TypeError),
        (torch.zeros(3, 4).long(), torch.zeros(3, dtype=torch.int64), TypeError),
    ],
)
def test_bad_batches(logits, target, error):
    for build in LOSSES.values():
        with pytest.raises(error, match=r"logits|target"):
            build()(logits, target)


@every_loss
@pytest.mark.parametrize("counts", [[5, 0], [-3, 5], [5, 2.5], [5, math.nan], [math.inf, 5], [7], [], [[5, 1]], 5])
def test_bad_counts(build, counts):
    with pytest.raises(ValueError, match="class_counts"):
        build(counts)


def test_counts_of_other_types():
    counter = collections.Counter([2, 0, 0, 1])  # in the order 2, 0, 1
    by_count = pandas.Series([2, 1, 0, 0, 0, 2]).value_counts()  # in the order 0, 2, 1
    assert LogitAdjustedLoss(by_count.sort_index()).class_counts.tolist() == [3, 1, 2]
    for counts in (counter, counter.values(), by_count, "51", [5, "1"], None):
        with pytest.raises(TypeError, match="class_counts"):
            BalancedSoftmaxLoss(counts)
    for counts in ([5.0, 1.0], (count for count in (5, 1))):
        assert BalancedSoftmaxLoss(counts).class_counts.tolist() == [5, 1]
    counts = torch.tensor([5, 1])
    loss = BalancedSoftmaxLoss(counts)
    counts.zero_()
    assert loss.class_counts.tolist() == [5, 1]


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: LogitAdjustedLoss([5, 1], tau=-1), "tau"),
        (lambda: LogitAdjustedLoss([5, 1], reduction="average"), "reduction"),
        (lambda: LDAMLoss([5, 1], max_margin=-0.1), "max_margin"),
        (lambda: LDAMLoss([5, 1], scale=0), "scale"),
        (lambda: LDAMLoss([5, 1], weight=[1.0, 0.0]), "weight"),
        (lambda: LabelAwareSmoothingLoss([5, 1], 1.1, 0.1), "smooth_head"),
        (lambda: effective_number_weights([5, 1], 1), "beta"),
    ],
)
def test_bad_options(build, name):
    with pytest.raises(ValueError, match=name):
        build()


def test_reweighting_is_in_place_so_that_compiled_code_follows():
    torch.compiler.reset()
    loss = LDAMLoss([500, 5])
    weight, compiled = loss.weight, torch.compile(loss, fullgraph=True, backend="aot_eager")
    x, target = torch.tensor([[0.5, -0.5], [0.3, 0.9]]), torch.tensor([0, 1])
    before = compiled(x, target)
    loss.reweight([0.1, 1.9])
    assert loss.weight is weight
    assert compiled(x, target).item() == pytest.approx(loss(x, target).item())
    assert compiled(x, target) != before
    loss.reweight(None)
    assert weight.tolist() == [1, 1]


def test_logits_that_are_no_cosines_are_warned_of_once(recwarn):
    loss, target = LDAMLoss([500, 5]), torch.tensor([0])
    loss(torch.tensor([[9.0, -9.0]]), target)  # cosines behind the matrix may exceed 1
    LDAMLoss([500, 5], scale=1)(torch.tensor([[90.0, -12.0]]), target)
    assert not recwarn
    for _ in range(2):
        loss(torch.tensor([[9.0, -12.0]]), target)
    assert [warning.filename for warning in recwarn] == [__file__]
