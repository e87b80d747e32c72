import torch

from maxsep.analysis.class_means import class_means


def test_means_far_from_the_origin_keep_their_digits():
    x = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 4
    near, far = class_means(x, y), class_means(x + 1e8, y)
    torch.testing.assert_close(far.means, near.means, rtol=0, atol=1e-7)  # the features are rounded at 1e-8
    assert float(far.means.sum(0).abs().max()) < 1e-14
    torch.testing.assert_close(far.origin, x.mean(0) + 1e8)


def test_a_mean_at_the_origin_is_seen_through_rounding():
    x = torch.tensor([[0.3, 0.3], [0.1, 0.1], [-0.1, -0.1], [-0.3, -0.3], [0.2, -0.2], [-0.2, 0.2]]) + 1 / 3
    assert class_means(x, torch.tensor([0, 0, 1, 1, 2, 2])).at_origin().tolist() == [False, False, False]
    x = x.double() - x.double()[4:].mean(0)
    x = torch.cat([x[:4] - x[:4].mean(0), x[4:]])
    assert class_means(x, torch.tensor([0, 0, 1, 1, 2, 2])).at_origin().tolist() == [False, False, True]
