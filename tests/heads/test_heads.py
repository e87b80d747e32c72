"""The heads one by one: formulas, folding, state dicts, bad input."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, fold, grow, heads, simplex
from maxsep.heads.ablations import optimise_prototypes
from maxsep.heads.controls import LogitScaledHead

COSINES = ("cosine", "cosine_maxsep", "maxsep_cosine", "centred_cosine")


def small(name, in_features=12, num_classes=5, **options):
    return heads.build(name, in_features, num_classes, **({"iterations": 50} if name == "hpn" else {}) | options)


@pytest.fixture
def x():
    return torch.randn(7, 12, generator=torch.Generator().manual_seed(3))


def cosines(x, rows):
    return F.cosine_similarity(x[:, None], rows[None], dim=-1)


def test_controls_are_scaled_plain_layers(x):
    for name, radius, scale in (("plain", 1.0, 1.0), ("scaled", 0.1, 0.1), ("control", 0.1, 0.1 * (5 / 4) ** 0.5)):
        head = small(name, radius=radius)
        torch.testing.assert_close(head(x), scale * (x @ head.weight.T + head.bias))


def test_ablations_start_from_the_matrix_or_at_random(x):
    torch.manual_seed(1)
    head = MaxSeparationHead(12, 5, radius=0.1)
    torch.manual_seed(1)
    learnable = small("learnable_matrix", radius=0.1)
    torch.testing.assert_close(learnable(x), head(x))
    assert learnable.matrix.requires_grad
    extra = small("extra_layer")
    torch.testing.assert_close(extra(x), extra.extra(x @ extra.weight.T + extra.bias))


def test_cosine_heads(x):
    plain, behind, true, control = (small(name, radius=2.0) for name in COSINES)
    torch.testing.assert_close(plain(x), 2 * cosines(x, plain.weight))
    torch.testing.assert_close(behind(x), 2 * cosines(x, behind.weight) @ simplex(5))
    torch.testing.assert_close(true(x), 2 * cosines(x @ true.weight.T + true.bias, simplex(5).T))
    outputs = x @ control.weight.T + control.bias
    corners = torch.eye(5) - 1 / 5
    torch.testing.assert_close(control(x), 2 * cosines(outputs - outputs.mean(1, keepdim=True), corners))
    torch.testing.assert_close(plain.weight.norm(dim=1), torch.ones(5))
    with pytest.raises(ValueError, match="bias"):
        small("cosine", bias=True)


@pytest.mark.parametrize("name", COSINES)
def test_features_of_length_zero_give_numbers(name):
    head, zero = small(name), torch.zeros(2, 12, requires_grad=True)
    head(zero).square().sum().backward()
    assert bool(head(zero).isfinite().all())
    assert bool(zero.grad.isfinite().all())


def test_hpn_compares_directions_with_fixed_prototypes(x):
    head, dots = small("hpn", radius=2.0), small("hpn", normalise=False)
    torch.testing.assert_close(head(x), 2 * F.normalize(x @ head.weight.T + head.bias, dim=1) @ head.prototypes.T)
    torch.testing.assert_close(dots(x), (x @ dots.weight.T + dots.bias) @ dots.prototypes.T)
    assert heads.build("hpn", 12, 2, normalise=False, iterations=3)(x).shape == (7, 2)


def test_prototypes_reproduce_the_published_spread():
    vectors = optimise_prototypes(100, 99).double()
    angles = torch.rad2deg(torch.acos((vectors @ vectors.T)[~torch.eye(100, dtype=torch.bool)]))
    assert angles.std().item() == pytest.approx(1.05, abs=0.02)
    assert (angles.min().item(), angles.max().item()) == pytest.approx((90.3, 107.1), abs=0.1)


def test_the_rotated_matrix_is_orthogonal_and_exact_after_half(x):
    head = small("maxsep_rotated", radius=0.3, rotation=4)
    matrix = head.matrix.clone()
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(4))
    torch.testing.assert_close(head(x), 0.3 * (x @ head.weight.T + head.bias) @ matrix.T @ simplex(5))
    assert torch.equal(head.half().float().matrix, matrix)
    assert not torch.allclose(small("maxsep_rotated").matrix, matrix)
    assert "matrix" not in head.state_dict()


def test_etf_is_the_simplex_on_the_features(x):
    torch.testing.assert_close(small("etf", radius=0.5)(x), 0.5 * x[:, :4] @ simplex(5))
    y = x[:, :4]
    torch.testing.assert_close(small("etf", 4, normalise=True, radius=10.0)(y), 10 * F.normalize(y, dim=1) @ simplex(5))
    reserved = small("etf", reserved=3)
    torch.testing.assert_close(reserved(x), (x[:, :7] @ simplex(8))[:, :5])
    torch.testing.assert_close(reserved.features(x) @ reserved.class_vectors().T, reserved(x))
    with pytest.raises(ValueError, match="in_features"):
        small("etf", 3)


def test_rotated_etf_uses_orthonormal_directions_of_all_features(x):
    head = small("etf", radius=0.5, rotation=3)
    rows = head.directions
    torch.testing.assert_close(rows @ rows.T, torch.eye(4))
    torch.testing.assert_close(head(x), 0.5 * x @ rows.T @ simplex(5))
    with torch.device("meta"):
        again = small("etf", rotation=3, device="cpu")
    assert torch.equal(again.directions, rows)  # from the seed alone
    assert "rotation=3" in repr(head)
    kept = small("etf", num_classes=3, reserved=2, rotation=3, bias=True)
    grown = grow(kept, 2)  # later classes have the coordinates that were reserved
    torch.testing.assert_close(grown(x), x @ rows.T @ simplex(5))
    torch.testing.assert_close(grown(x)[:, :3], kept(x))


def test_directions_of_another_rotation_are_refused():
    state = small("etf", rotation=3).state_dict()
    with pytest.raises(ValueError, match="rotation"):
        small("etf", rotation=0).load_state_dict(state)
    state["directions"] = state["directions"].half().float()  # rounded, but the same
    small("etf", rotation=3).load_state_dict(state)


@pytest.mark.parametrize("name", heads.names())
def test_folded_heads_are_plain_torch_with_the_same_logits(name, x):
    head = small(name, radius=1.0 if name in ("plain", "extra_layer") else 0.7)
    folded = head.folded()
    assert all(type(module).__module__.startswith("torch.") for module in folded.modules())
    for scale in (1.0, 1e4):
        torch.testing.assert_close(folded(x * scale), head(x * scale), atol=1e-6 * scale, rtol=1e-5)
    if name in (*COSINES, "hpn"):
        with pytest.raises(ValueError, match="no linear form"):
            head.linear_form()
    else:
        weight, bias = head.linear_form()
        torch.testing.assert_close(F.linear(x, weight, bias), head(x), atol=1e-6, rtol=1e-5)
    normalised = small("etf", normalise=True, radius=5.0)
    torch.testing.assert_close(normalised.folded()(x * 1e-3), normalised(x * 1e-3), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", heads.names())
def test_every_head_can_be_scaled_and_folded(name, x):
    base = small(name)
    head = LogitScaledHead(base)
    assert torch.equal(head(x), base(x))
    with torch.no_grad():
        head.scale.copy_(torch.arange(1.0, 6.0))
    torch.testing.assert_close(head(x), base(x) * torch.arange(1.0, 6.0))
    model = nn.Sequential(nn.Linear(12, 12), head)
    torch.testing.assert_close(fold(model)(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", heads.names())
def test_meta_device_then_to_empty(name, x):
    head = small(name)
    with torch.device("meta"):
        ready, assigned = small(name), small(name)
    ready = ready.to_empty(device="cpu")
    ready.load_state_dict(head.state_dict())
    torch.testing.assert_close(ready(x), head(x))
    ready.to_empty(device="cpu").reset_parameters()
    assert bool(ready(x).isfinite().all())
    assert bool(ready(x).abs().sum() > 0)
    if name == "hpn":  # prototypes that nobody can see are not optimised
        small(name, iterations=10**12, device="meta")
    if list(assigned.parameters()):
        assigned.load_state_dict(head.state_dict(), assign=True)
        torch.testing.assert_close(assigned(x), head(x))


@pytest.mark.parametrize("name", sorted({*heads.names()} - {"plain", "extra_layer"}))
def test_the_radius_of_a_state_dict_is_checked_where_it_has_values(name):
    head = small(name, radius=0.5)
    with pytest.raises(ValueError, match=r"radius=0\.3"):
        head.load_state_dict(small(name, radius=0.3).state_dict())
    head.load_state_dict({key: value.to("meta") for key, value in head.state_dict().items()}, assign=True)
    assert all(parameter.is_meta for parameter in head.parameters())


@pytest.mark.parametrize(
    ("arguments", "kind", "argument"),
    [
        ((0, 5), ValueError, "in_features"),
        ((12, 1), ValueError, "num_classes"),
        ((12, 5, float("nan")), ValueError, "radius"),
        ((12, 5, None), TypeError, "radius"),
    ],
)
@pytest.mark.parametrize("name", ["maxsep", "plain", "etf"])
def test_bad_construction(name, arguments, kind, argument):
    with pytest.raises(kind, match=argument):
        heads.build(name, *arguments)


@pytest.mark.parametrize("name", heads.names())
def test_bad_forward_and_options(name, x):
    head = small(name)
    with pytest.raises(ValueError, match="in_features"):
        head(x[:, :11])
    with pytest.raises(TypeError, match="x"):
        head(x.long())
    if name != "maxsep":
        with pytest.raises(TypeError, match="class_order"):
            small(name, class_order=[0, 1, 2, 3, 4])


def test_registry():
    with pytest.raises(ValueError, match="nope"):
        heads.build("nope", 12, 5)
    with pytest.raises(ValueError, match="plain"):
        heads.register("plain")(MaxSeparationHead)
    for name in ("plain", "extra_layer"):
        with pytest.raises(ValueError, match="radius"):
            heads.build(name, 12, 5, radius=0.1)
    assert heads.option_defaults("hpn") == {"bias": True, "normalise": True, "iterations": 10_000}
    assert heads.option_defaults("etf") == {"normalise": False, "reserved": 0, "rotation": None, "bias": False}
    assert heads.option_defaults("maxsep_cosine") == heads.option_defaults("maxsep") == {"bias": True}
