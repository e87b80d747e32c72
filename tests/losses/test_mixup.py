import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.losses import mixup


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(size=st.integers(1, 20), alpha=st.floats(1e-4, 1e4), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_every_sample_is_the_told_mixture_of_two(size, alpha, seed):
    x = torch.randn(size, 2, 3, generator=seeded(1), dtype=torch.float64)
    y = torch.arange(size)
    mixed, first, second, share = mixup(x, y, alpha, seeded(seed))
    assert torch.equal(first, y)
    assert sorted(second.tolist()) == y.tolist()
    assert 0 <= share <= 1
    torch.testing.assert_close(mixed, share * x[first] + (1 - share) * x[second], rtol=1e-14, atol=1e-14)


def test_the_generator_decides_everything():
    x, y = torch.randn(8, 3), torch.arange(8)
    state = torch.get_rng_state()
    generator = seeded(5)
    one, other, again = mixup(x, y, 0.5, generator), mixup(x, y, 0.5, generator), mixup(x, y, 0.5, seeded(5))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert one.share != other.share
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_beta_distributed(alpha):
    generator, x, y = seeded(), torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1)
    shares = torch.stack([mixup(x, y, alpha, generator).share for _ in range(4000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert shares.mean().item() == pytest.approx(0.5, abs=4 * (variance / 4000) ** 0.5)
    assert shares.var().item() == pytest.approx(variance, rel=0.1)
    if alpha == 1:  # uniform: the largest gap between the empirical and the true distribution function
        gap = (shares.sort().values - (torch.arange(4000) + 0.5) / 4000).abs().max()
        assert gap < 1.95 / 4000**0.5


def test_a_tiny_alpha_leaves_batches_unmixed():
    shares = [mixup(torch.zeros(1, 1), torch.zeros(1), 1e-6, seeded(seed)).share.item() for seed in range(50)]
    assert {round(share, 6) for share in shares} == {0.0, 1.0}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types_are_kept(dtype):
    mixed, _, second, share = mixup(torch.randn(4, 3).to(dtype), torch.eye(4), 1.0, seeded())
    assert mixed.dtype == dtype
    assert second.shape == (4, 4)
    assert share.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_a_generator_on_the_cpu_serves_any_device():
    mixed = mixup(torch.zeros(4, 3, device="meta"), torch.arange(4), 1.0, seeded())
    assert mixed.x.device.type == mixed.share.device.type == "meta"
    assert sorted(mixed.second.tolist()) == [0, 1, 2, 3]


def test_gradients_reach_both_partners():
    x = torch.ones(4, 2, requires_grad=True)
    mixup(x, torch.arange(4), 1.0, seeded()).x.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(4, 2))


X, Y = torch.zeros(3, 2), torch.arange(3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X.byte(), Y, 1.0, seeded()), TypeError, "x must be a real floating-point tensor, got dtype torch.uint8"),
        ((X, [0, 1, 2], 1.0, seeded()), TypeError, "y must be a tensor of targets, got list. Convert it with"),
        (
            (X, Y[:2], 1.0, seeded()),
            ValueError,
            r"same samples along .* got shapes \(3, 2\) and \(2,\). Pass one target",
        ),
        ((X[:0], Y[:0], 1.0, seeded()), ValueError, r"at least one, got shapes \(0, 2\)"),
        ((X[0, 0], Y[0], 1.0, seeded()), ValueError, r"got shapes \(\) and \(\)"),
        ((X, Y, 0, seeded()), ValueError, "alpha must be a positive number, got 0"),
        ((X, Y, float("inf"), seeded()), ValueError, "alpha must be a positive number, got inf"),
        ((X, Y, 1.0, None), TypeError, r"generator must be a torch.Generator, got NoneType. Pass torch.Generator"),
        ((X, Y, 1.0, 42), TypeError, "generator must be a torch.Generator, got int"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        mixup(*arguments)
