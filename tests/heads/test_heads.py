"""The modules one by one: formulas, representation, state dicts, bad input."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maxsep import MaxSeparationHead, heads, simplex


def small(name, in_features=12, num_classes=5, **options):
    if name == "hpn":
        options.setdefault("iterations", 50)
    return heads.build(name, in_features, num_classes, **options)


@pytest.fixture
def x():
    return torch.randn(7, 12, generator=torch.Generator().manual_seed(3))


def test_maxsep_formula(x):
    head = MaxSeparationHead(12, 5, radius=0.3)
    expected = 0.3 * (x @ head.weight.T + head.bias) @ simplex(5)
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head.features(x), x @ head.weight.T + head.bias)
    torch.testing.assert_close(head.radius * head.features(x) @ head.class_vectors().T, expected)
    assert (head.in_features, head.out_features, head.num_classes, head.radius) == (12, 5, 5, 0.3)
    assert {name: tuple(p.shape) for name, p in head.named_parameters()} == {"weight": (4, 12), "bias": (4,)}
    assert not list(head.buffers())
    assert not isinstance(head, nn.Linear)


def test_maxsep_starts_as_a_linear_layer_does():
    torch.manual_seed(5)
    linear = nn.Linear(12, 4)
    torch.manual_seed(5)
    head = MaxSeparationHead(12, 5)
    assert torch.equal(head.weight, linear.weight)
    assert torch.equal(head.bias, linear.bias)


def test_without_bias(x):
    head = MaxSeparationHead(12, 5, bias=False)
    assert head.bias is None
    assert set(head.state_dict()) == {"weight", "_extra_state"}
    torch.testing.assert_close(head(x), x @ head.weight.T @ simplex(5))


def test_representation():
    assert repr(MaxSeparationHead(12, 5, radius=0.1)) == "MaxSeparationHead(in_features=12, num_classes=5, radius=0.1)"
    told = repr(heads.build("etf", 12, 5, reserved=2, normalise=True))
    assert told == "ETFHead(in_features=12, num_classes=5, radius=1, normalise=True, reserved=2)"


@given(
    in_features=st.integers(1, 20),
    num_classes=st.integers(2, 60),
    radius=st.floats(0.01, 100),
    bias=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_from_linear_keeps_every_probability(in_features, num_classes, radius, bias):
    linear = nn.Linear(in_features, num_classes, bias=bias, dtype=torch.float64)
    head = MaxSeparationHead.from_linear(linear, radius)
    x = torch.randn(9, in_features, dtype=torch.float64)
    torch.testing.assert_close(head(x).softmax(-1), linear(x).softmax(-1), atol=1e-12, rtol=1e-12)
    folded = head.folded()
    torch.testing.assert_close(folded(x), linear(x) - linear(x).mean(-1, keepdim=True), atol=1e-12, rtol=1e-9)
    again = MaxSeparationHead.from_linear(folded, radius)
    torch.testing.assert_close(again.weight, head.weight, atol=1e-11, rtol=1e-9)


def test_from_linear_keeps_mode_dtype_and_what_is_trained():
    linear = nn.Linear(6, 4).to(torch.bfloat16).eval()
    linear.weight.requires_grad_(False)
    head = MaxSeparationHead.from_linear(linear)
    assert head.weight.dtype == torch.bfloat16
    assert not head.training
    assert not head.weight.requires_grad
    assert head.bias.requires_grad
    with pytest.raises(TypeError, match=r"from_linear takes an nn.Linear, got Conv2d"):
        MaxSeparationHead.from_linear(nn.Conv2d(1, 1, 1))


def test_argmax_of_a_converted_layer_on_many_rows():
    linear = nn.Linear(16, 10, dtype=torch.float64)
    x = torch.randn(100_000, 16, dtype=torch.float64)
    assert torch.equal(MaxSeparationHead.from_linear(linear, 0.1)(x).argmax(1), linear(x).argmax(1))


def test_controls_are_what_they_say(x):
    plain = small("plain")
    scaled = small("scaled", radius=0.1)
    scaled.load_state_dict({**plain.state_dict(), "_extra_state": scaled.get_extra_state()})
    centred = small("centred")
    centred.load_state_dict(plain.state_dict())
    torch.testing.assert_close(plain(x), x @ plain.weight.T + plain.bias)
    torch.testing.assert_close(scaled(x), 0.1 * plain(x))
    torch.testing.assert_close(centred(x), plain(x) - plain(x).mean(-1, keepdim=True))


def test_twin_starts_where_the_matrix_starts(x):
    torch.manual_seed(1)
    head = MaxSeparationHead(12, 5, radius=0.1)
    torch.manual_seed(1)
    twin = heads.build("twin", 12, 5, radius=0.1)
    torch.testing.assert_close(twin(x), head(x))
    assert twin.factor == pytest.approx(0.01 * 5 / 4)


def test_ablations_start_from_the_matrix_or_at_random(x):
    torch.manual_seed(1)
    head = MaxSeparationHead(12, 5, radius=0.1)
    torch.manual_seed(1)
    learnable = heads.build("learnable_matrix", 12, 5, radius=0.1)
    torch.testing.assert_close(learnable(x), head(x))
    assert learnable.matrix.requires_grad
    extra = heads.build("extra_layer", 12, 5)
    torch.testing.assert_close(extra(x), extra.extra(x @ extra.weight.T + extra.bias))


def test_hpn_compares_directions_with_fixed_prototypes(x):
    head = small("hpn", radius=2.0)
    z = nn.functional.normalize(x @ head.weight.T + head.bias, dim=1)
    torch.testing.assert_close(head(x), 2 * z @ head.prototypes.T)
    dots = small("hpn", normalise=False)
    torch.testing.assert_close(dots(x), (x @ dots.weight.T + dots.bias) @ dots.prototypes.T)
    with pytest.raises(ValueError, match="cosines have no linear form"):
        head.linear_form()


@pytest.mark.parametrize("name", heads.names())
def test_folded_head_is_plain_torch_with_the_same_logits(name, x):
    head = small(name, radius=1.0 if name in ("plain", "extra_layer") else 0.7)
    folded = head.folded()
    assert all(type(module).__module__.startswith("torch.") for module in folded.modules())
    linear_heads = [module for module in folded.modules() if isinstance(module, nn.Linear)]
    assert len(linear_heads) == (2 if name in ("hpn", "maxsep_cosine") else 1)
    torch.testing.assert_close(folded(x), head(x), atol=1e-6, rtol=1e-5)


def test_folded_cosine_heads_keep_the_normalisation(x):
    head = heads.build("etf", 12, 5, radius=5.0, normalise=True)
    for scale in (1e-3, 1.0, 1e4):
        torch.testing.assert_close(head.folded()(x * scale), head(x * scale), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", heads.names())
def test_meta_device_then_to_empty(name, x):
    head = small(name)
    with torch.device("meta"):
        ready = small(name)
    ready = ready.to_empty(device="cpu")
    ready.load_state_dict(head.state_dict())
    torch.testing.assert_close(ready(x), head(x))
    ready.to_empty(device="cpu").reset_parameters()
    assert bool(ready(x).isfinite().all())
    assert bool(ready(x).abs().sum() > 0)


@pytest.mark.parametrize("name", heads.names())
def test_state_dict_keys_are_frozen(name):
    expected = {
        "etf": {"_extra_state"},
        "cosine": {"weight", "_extra_state"},
        "cosine_maxsep": {"weight", "_extra_state"},
        "hpn": {"weight", "bias", "prototypes", "_extra_state"},
        "learnable_matrix": {"weight", "bias", "matrix", "_extra_state"},
        "extra_layer": {"weight", "bias", "extra.weight", "extra.bias", "_extra_state"},
    }.get(name, {"weight", "bias", "_extra_state"})
    assert set(small(name).state_dict()) == expected


def test_state_dicts_may_be_averaged():
    """In float32, back in the precision that each tensor had."""
    states = [MaxSeparationHead(12, 5, radius=0.3).state_dict() for _ in range(3)]
    averaged = {
        name: torch.stack([state[name].float() for state in states]).mean(0).to(states[0][name].dtype)
        for name in states[0]
    }
    MaxSeparationHead(12, 5, radius=0.3).load_state_dict(averaged)
    with pytest.raises(ValueError, match="trained at radius"):
        MaxSeparationHead(12, 5, radius=0.30001).load_state_dict(averaged)


def test_state_dict_of_another_size_or_radius_is_refused():
    state = MaxSeparationHead(12, 6).state_dict()
    with pytest.raises(ValueError, match=r"of a head with 6 classes, but the head has 5. Build it with num_classes=6"):
        MaxSeparationHead(12, 5).load_state_dict(state)
    state = MaxSeparationHead(12, 5, radius=0.1).state_dict()
    with pytest.raises(
        ValueError, match=r"trained at radius 0\.1, but the head has radius 1.* 10 times what they were"
    ):
        MaxSeparationHead(12, 5).load_state_dict(state)
    model = nn.Sequential(nn.Linear(3, 12), MaxSeparationHead(12, 5))
    plain = nn.Sequential(nn.Linear(3, 12), nn.Linear(12, 5)).state_dict()
    with pytest.raises(ValueError, match=r"'1.weight' of shape \(5, 12\) is a plain linear layer's.*from_linear"):
        model.load_state_dict(plain, strict=False)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        MaxSeparationHead(12, 5).load_state_dict(MaxSeparationHead(13, 5).state_dict())


def test_state_dict_rounded_to_half_precision_still_loads():
    head = MaxSeparationHead(12, 5, radius=0.1)
    head.load_state_dict({name: tensor.bfloat16() for name, tensor in head.state_dict().items()})
    assert head.radius == 0.1


def test_radius_survives_half_and_back():
    head = MaxSeparationHead(12, 5, radius=0.1).half().float()
    assert head.radius == 0.1
    assert head.get_extra_state().tolist() == [5.0, 0.1]


def test_half_precision_head_keeps_its_dtype(x):
    for dtype in (torch.float16, torch.bfloat16):
        assert MaxSeparationHead(12, 5).to(dtype)(x.to(dtype)).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert MaxSeparationHead(12, 5)(x).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ((0, 5), ValueError, "in_features must be at least 1, got 0"),
        ((12.0, 5), TypeError, "in_features must be an int, got float 12.0"),
        ((12, 1), ValueError, "num_classes must be at least 2, got 1"),
        ((12, True), TypeError, "num_classes must be an int, got bool True"),
        ((12, 5, 0.0), ValueError, "radius must be positive and finite, got 0.0"),
        ((12, 5, float("nan")), ValueError, "got nan"),
        ((12, 5, None), TypeError, "radius must be a number, got NoneType None"),
    ],
)
@pytest.mark.parametrize("name", heads.names())
def test_bad_construction(name, arguments, kind, told):
    with pytest.raises(kind) as caught:
        heads.build(name, *arguments)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", heads.names())
def test_bad_forward(name, x):
    head = small(name)
    with pytest.raises(ValueError, match=r"must be in_features = 12, got shape \(7, 11\)"):
        head(x[:, :11])
    with pytest.raises(TypeError, match=r"must be a real floating-point tensor, got dtype torch.int64"):
        head(x.long())


def test_heads_without_a_radius_say_so():
    with pytest.raises(ValueError, match=r"plain head has no radius, got 0.1. Use the head 'scaled'"):
        heads.build("plain", 12, 5, radius=0.1)
    with pytest.raises(ValueError, match=r"extra layer has no radius, got 0.1"):
        heads.build("extra_layer", 12, 5, radius=0.1)


def test_registry():
    assert set(heads.names()) == {
        "maxsep", "plain", "scaled", "centred", "twin", "learnable_matrix", "extra_layer", "etf", "hpn",
        "cosine", "cosine_maxsep", "maxsep_cosine", "centred_cosine",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"unknown head 'nope'. Known: .*maxsep"):
        heads.build("nope", 12, 5)
    with pytest.raises(ValueError, match="a head named 'plain' is already registered: PlainHead"):
        heads.register("plain")(heads.MaxSeparationHead)


def test_base_head_names_what_a_subclass_must_define():
    class Bare(heads.Head):
        pass

    with pytest.raises(NotImplementedError, match="Bare must define class_vectors"):
        Bare(3, 4).class_vectors()
    with pytest.raises(NotImplementedError, match="Bare must define linear_form"):
        Bare(3, 4).linear_form()


def test_prototypes_reproduce_the_published_spread():
    vectors = heads.optimise_prototypes(100, 99).double()
    angles = torch.rad2deg(torch.acos((vectors @ vectors.T)[~torch.eye(100, dtype=torch.bool)]))
    assert angles.std().item() == pytest.approx(1.05, abs=0.02)
    assert angles.min().item() == pytest.approx(90.3, abs=0.1)
    assert angles.max().item() == pytest.approx(107.1, abs=0.1)


def test_deepcopy_does_not_share_parameters():
    head = MaxSeparationHead(12, 5)
    other = copy.deepcopy(head)
    with torch.no_grad():
        other.weight.add_(1)
    assert not torch.equal(head.weight, other.weight)


def test_a_refused_state_dict_changes_nothing_of_the_head():
    head = MaxSeparationHead(12, 5)
    before = head.weight.clone()
    with pytest.raises(ValueError, match="trained at radius"):
        head.load_state_dict(MaxSeparationHead(12, 5, radius=0.1).state_dict())
    assert torch.equal(head.weight, before)


def test_a_large_common_shift_costs_no_digits():
    linear = nn.Linear(6, 50)
    with torch.no_grad():
        linear.bias.add_(1e4)
    x = torch.randn(20, 6)
    expected = (x.double() @ linear.weight.double().T + linear.bias.double()).softmax(-1)
    assert (MaxSeparationHead.from_linear(linear)(x).softmax(-1) - expected).abs().max() < 2e-6 + 1e-3 * expected.max()
    head = MaxSeparationHead.from_linear(linear)
    assert head.bias.abs().max() < 2  # the shift is gone, not carried along


@pytest.mark.parametrize("name", heads.names())
def test_symbolic_traces(name, x):
    head = small(name).eval()
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(12, 12), head))
    torch.testing.assert_close(traced(x), nn.Sequential(traced.get_submodule("0"), head)(x))


def test_name_of_a_head():
    assert heads.registry.name_of(small("twin")) == "twin"

    class Own(MaxSeparationHead):
        pass

    assert heads.registry.name_of(Own(4, 3)) is None
