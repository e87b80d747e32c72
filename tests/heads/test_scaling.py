import pytest
import torch
from torch import nn

from maxsep import check_head, fold, grow, heads


@pytest.mark.parametrize("name", heads.names())
def test_every_head_can_be_scaled_and_folded(name):
    torch.manual_seed(0)
    base = heads.build(name, 12, 5, **({"iterations": 10} if name == "hpn" else {}))
    head, x = heads.LogitScaledHead(base), torch.randn(7, 12)
    assert torch.equal(head(x), base(x))
    with torch.no_grad():
        head.scale.copy_(torch.arange(1.0, 6.0))
    torch.testing.assert_close(head(x), base(x) * torch.arange(1.0, 6.0))
    model = nn.Sequential(nn.Linear(12, 12), head)
    folded = fold(model)
    torch.testing.assert_close(folded(x), model(x), atol=1e-5, rtol=1e-5)
    assert not [part for part in folded.modules() if type(part).__module__.startswith("maxsep")]


def test_it_meets_the_contract_of_a_head():
    head = heads.LogitScaledHead(heads.build("maxsep", 12, 5, radius=0.1))
    check_head(head)
    x = torch.randn(3, 12)
    weight, bias = head.linear_form()
    torch.testing.assert_close(x @ weight.T + bias, head(x))
    torch.testing.assert_close(0.1 * head.features(x) @ head.class_vectors().T, head(x))


def test_reset_keeps_the_head_below():
    head = heads.LogitScaledHead(heads.build("plain", 12, 5))
    weight = head.head.weight.clone()
    nn.init.zeros_(head.scale)
    head.reset_parameters()
    assert torch.equal(head.scale, torch.ones(5))
    assert torch.equal(head.head.weight, weight)


def test_only_heads_can_be_scaled():
    with pytest.raises(TypeError, match="logits of a head can be scaled, got Linear"):
        heads.LogitScaledHead(nn.Linear(3, 4))


def test_factors_do_not_grow_but_say_what_to_do():
    with pytest.raises(TypeError, match=r"got LogitScaledHead. Fold it and take it over with .*from_linear"):
        grow(heads.LogitScaledHead(heads.build("maxsep", 12, 5)), 1)
