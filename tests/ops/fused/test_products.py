"""Products may have a factor and be wider than what is multiplied."""

import pytest
import torch

from maxsep.ops.fused.products import add_product, product

PRECISIONS = [(torch.float64, torch.float64), (torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize(("dtype", "wide"), PRECISIONS)
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_product(dtype, wide, factor):
    torch.manual_seed(0)
    a, b = torch.randn(7, 9).to(dtype).T, torch.randn(7, 5).to(dtype)
    whole = torch.full((12, 5), torch.nan, dtype=wide)  # whatever lies there has no part in it
    product(a, b, whole[2:11], factor)
    exact = factor * (a.double() @ b.double())
    slack = 1e-12 if dtype == torch.float64 else 2e-2
    torch.testing.assert_close(whole[2:11].double(), exact, atol=slack, rtol=slack)
    assert whole[:2].isnan().all()
    assert whole[11:].isnan().all()


@pytest.mark.parametrize(("dtype", "wide"), PRECISIONS)
def test_add_product(dtype, wide):
    a, b = torch.ones(2, 3, dtype=dtype), torch.ones(3, 2, dtype=dtype)
    total = torch.ones(2, 2, dtype=wide)
    add_product(total, a, b)
    assert (total == 4).all()
