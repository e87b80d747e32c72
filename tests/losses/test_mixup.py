"""Mixup: the mixture, its distribution, and its only source of randomness."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maxsep.losses import mixup


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(size=st.integers(1, 20), alpha=st.floats(1e-4, 1e4), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_every_sample_is_the_mixture_of_two(size, alpha, seed):
    x = torch.randn(size, 2, 3, generator=seeded(1), dtype=torch.float64)
    y = torch.arange(size)
    mixed, first, second, share = mixup(x, y, alpha, seeded(seed))
    assert torch.equal(first, y)
    assert sorted(second.tolist()) == y.tolist()
    assert 0 <= share <= 1
    torch.testing.assert_close(mixed, share * x[first] + (1 - share) * x[second], rtol=1e-14, atol=1e-14)


def test_the_generator_decides_everything():
    x, y = torch.randn(8, 3), torch.arange(8)
    state, generator = torch.get_rng_state(), seeded(5)
    one, other, again = mixup(x, y, 0.5, generator), mixup(x, y, 0.5, generator), mixup(x, y, 0.5, seeded(5))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert one[3] != other[3]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_shares_are_beta_distributed(alpha):
    generator, x, y = seeded(), torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1)
    shares = torch.stack([mixup(x, y, alpha, generator)[3] for _ in range(4000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert shares.mean().item() == pytest.approx(0.5, abs=4 * (variance / 4000) ** 0.5)
    assert shares.var().item() == pytest.approx(variance, rel=0.1)


def test_a_tiny_alpha_leaves_batches_unmixed():
    shares = [mixup(torch.zeros(1, 1), torch.zeros(1), 1e-6, seeded(seed))[3].item() for seed in range(50)]
    assert {round(share, 6) for share in shares} == {0.0, 1.0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_devices_and_gradients(dtype):
    x = torch.ones(4, 3, dtype=dtype, requires_grad=True)
    mixed, _, second, share = mixup(x, torch.eye(4), 1.0, seeded())
    assert (mixed.dtype, second.shape) == (dtype, (4, 4))
    assert share.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    mixed.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(4, 3, dtype=dtype))
    assert mixup(x.to("meta"), torch.arange(4), 1.0, seeded())[0].is_meta  # a generator on the CPU serves any device


X, Y = torch.zeros(3, 2), torch.arange(3)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((X.byte(), Y, 1.0, seeded()), TypeError),
        ((X, Y[:2], 1.0, seeded()), ValueError),
        ((X, Y, 0, seeded()), ValueError),
        ((X, Y, 1.0, 42), TypeError),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error):
        mixup(*arguments)
