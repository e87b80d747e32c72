"""The head and the layer in the Householder basis: formulas, representation, state dicts, copies, refusals."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from maxsep import MaxSeparation, MaxSeparationHead, heads, separate, simplex
from maxsep.heads import registry

H = "householder"


@pytest.fixture
def x():
    return torch.randn(7, 12, generator=torch.Generator().manual_seed(3))


def test_formula(x):
    head = MaxSeparationHead(12, 5, radius=0.3, basis=H)
    z = x @ head.weight.T + head.bias
    torch.testing.assert_close(head(x), 0.3 * z @ simplex(5, basis=H))
    torch.testing.assert_close(head.features(x), z)
    torch.testing.assert_close(head.radius * head.features(x) @ head.class_vectors().T, head(x))
    weight, bias = head.linear_form()
    torch.testing.assert_close(x @ weight.T + bias, head(x))
    layer = MaxSeparation(5, 0.3, basis=H)
    torch.testing.assert_close(layer(z), head(x))
    assert torch.equal(layer(z), separate(z, 0.3, basis=H))


def test_the_paper_basis_is_the_default_everywhere():
    assert MaxSeparationHead(12, 5).basis == MaxSeparation(5).basis == "recursive"
    assert {
        heads.build(name, 12, 5, **({"iterations": 9} if name == "hpn" else {})).basis for name in heads.names()
    } == {"recursive"}


def test_it_says_its_basis_only_where_it_is_not_the_papers():
    told = "MaxSeparationHead(in_features=12, num_classes=5, radius=0.1, basis='householder')"
    assert repr(MaxSeparationHead(12, 5, 0.1, basis=H)) == told
    assert repr(MaxSeparation(5, basis=H)) == "MaxSeparation(num_classes=5, radius=1, basis='householder')"
    assert "basis" not in repr(MaxSeparationHead(12, 5, basis="recursive")) + repr(MaxSeparation(5))


def test_the_same_start_and_the_same_parameters():
    torch.manual_seed(5)
    paper = MaxSeparationHead(12, 5)
    torch.manual_seed(5)
    turned = MaxSeparationHead(12, 5, basis=H)
    assert torch.equal(paper.weight, turned.weight)
    assert {name: p.shape for name, p in turned.named_parameters()} == {"weight": (4, 12), "bias": (4,)}
    assert not list(turned.buffers())


@given(st.integers(1, 20), st.integers(2, 60), st.floats(0.01, 100), st.booleans())
def test_from_linear_keeps_every_probability(in_features, num_classes, radius, bias):
    linear = nn.Linear(in_features, num_classes, bias=bias, dtype=torch.float64)
    head = MaxSeparationHead.from_linear(linear, radius, basis=H)
    assert head.basis == H
    x = torch.randn(9, in_features, dtype=torch.float64)
    torch.testing.assert_close(head(x), linear(x) - linear(x).mean(-1, keepdim=True), atol=1e-12, rtol=1e-9)
    again = MaxSeparationHead.from_linear(head.folded(), radius, basis=H)
    torch.testing.assert_close(again.weight, head.weight, atol=1e-11, rtol=1e-9)


def test_state_dicts_say_their_basis(x):
    head = MaxSeparationHead(12, 5, 0.1, basis=H)
    assert head.get_extra_state().tolist() == [5.0, 0.1, 1.0]
    assert MaxSeparationHead(12, 5, 0.1).get_extra_state().tolist() == [5.0, 0.1]  # as it always was
    twin = MaxSeparationHead(12, 5, 0.1, basis=H)
    twin.load_state_dict({name: tensor.bfloat16() for name, tensor in head.state_dict().items()})
    twin.load_state_dict(head.state_dict())
    assert torch.equal(twin(x), head(x))
    layer = MaxSeparation(5, basis=H)
    MaxSeparation(5, basis=H).load_state_dict(layer.state_dict())


@pytest.mark.parametrize(("saved", "own"), [(H, "recursive"), ("recursive", H)])
def test_a_state_dict_of_the_other_basis_is_refused_before_anything_is_copied(saved, own):
    head = MaxSeparationHead(12, 5, basis=own)
    before = head.weight.clone()
    told = (
        rf"head in the basis '{saved}', but the head is in '{own}': .*with basis='{saved}', and turn that with "
        rf"maxsep.change_basis\(head, '{own}'\)"
    )
    with pytest.raises(ValueError, match=told):
        head.load_state_dict(MaxSeparationHead(12, 5, basis=saved).state_dict())
    assert torch.equal(head.weight, before)
    with pytest.raises(ValueError, match=told):
        MaxSeparation(5, basis=own).load_state_dict(MaxSeparation(5, basis=saved).state_dict())


def test_a_plain_layer_of_the_size_is_still_refused():
    with pytest.raises(ValueError, match=r"is a plain linear layer's.*from_linear"):
        MaxSeparationHead(12, 5, basis=H).load_state_dict(nn.Linear(12, 5).state_dict())


def test_copies_pickles_and_moves(x):
    for module, values in ((MaxSeparationHead(12, 5, basis=H), x), (MaxSeparation(13, basis=H), x)):
        expected = module(values)
        for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), module.half().float().to("cpu")):
            assert twin.basis == H
            torch.testing.assert_close(twin(values), expected, atol=1e-2, rtol=1e-2)
    with torch.device("meta"):
        empty = MaxSeparationHead(12, 5, basis=H)
    empty.to_empty(device="cpu").reset_parameters()
    assert empty(x).shape == (7, 5)


def test_a_head_pickled_before_there_was_a_choice_is_the_papers():
    head = MaxSeparationHead(12, 5)
    del head.__dict__["_basis"]
    assert pickle.loads(pickle.dumps(head)).basis == "recursive"


def test_the_basis_cannot_be_set_under_the_weights():
    with pytest.raises(AttributeError):
        MaxSeparationHead(12, 5).basis = H


@pytest.mark.parametrize("build", [lambda b: MaxSeparationHead(12, 5, basis=b), lambda b: MaxSeparation(5, basis=b)])
def test_bad_basis(build):
    with pytest.raises(ValueError, match="basis must be one of recursive, householder, got 'paper'"):
        build("paper")


@pytest.mark.parametrize("name", sorted(set(heads.names()) - {"maxsep"}))
def test_other_heads_have_no_basis_to_choose(name):
    told = f"the head '{name}' has no basis to choose, got basis='householder'. Leave basis out, or take the head 'maxs"
    with pytest.raises(TypeError, match=told):
        heads.build(name, 12, 5, basis=H)


def test_the_registry_passes_the_basis_on():
    assert heads.build("maxsep", 12, 5, basis=H).basis == H


def test_the_registry_passes_the_basis_on_to_a_head_that_passes_its_options_on(monkeypatch):
    class Own(MaxSeparationHead):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)

    monkeypatch.setitem(registry._heads, "own", Own)
    assert heads.build("own", 12, 5, basis=H).basis == H


@pytest.mark.parametrize("number", [2.0, -1.0, 0.5])
def test_a_state_dict_of_a_basis_that_nobody_knows_is_refused(number):
    head = MaxSeparationHead(12, 5, basis=H)
    state = head.state_dict() | {"_extra_state": torch.tensor([5.0, 1.0, number])}
    told = rf"in basis number {number:g}, but this version knows 0 \(recursive\), 1 \(householder\)\. Load it with"
    with pytest.raises(ValueError, match=told):
        head.load_state_dict(state)


@pytest.mark.parametrize("dynamic", [False, True])
def test_exports_to_plain_operations(x, dynamic):
    head = MaxSeparationHead(12, 5, basis=H).eval()
    shapes = {"x": {0: torch.export.Dim("batch")}} if dynamic else None
    program = torch.export.export(head, (x,), dynamic_shapes=shapes)
    assert not any("maxsep" in str(node.target) or "cumsum" in str(node.target) for node in program.graph.nodes)
    other = torch.randn(3 if dynamic else 7, 12)
    torch.testing.assert_close(program.module()(other), head(other))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch's exporter speaks of itself
def test_exports_to_onnx(x, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    head = MaxSeparationHead(12, 5, basis=H).eval()
    torch.onnx.export(head, (x,), str(tmp_path / "head.onnx"), dynamo=True, verbose=False)
    (found,) = onnxruntime.InferenceSession(str(tmp_path / "head.onnx")).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), head(x).detach(), atol=1e-5, rtol=1e-5)


def test_symbolic_traces_and_transforms(x):
    head = MaxSeparationHead(12, 5, basis=H).eval()
    torch.testing.assert_close(torch.fx.symbolic_trace(head)(x), head(x))
    parameters = dict(head.named_parameters())

    def loss(parameters, row):
        return torch.func.functional_call(head, parameters, row).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    whole = torch.autograd.grad(head(x).square().sum(), head.weight)[0]
    torch.testing.assert_close(per_sample["weight"].sum(0), whole, atol=1e-4, rtol=1e-4)


def test_scaled_heads_say_the_basis_of_the_head_below():
    head = heads.LogitScaledHead(MaxSeparationHead(12, 5, basis=H))
    assert head.basis == H
    with pytest.raises(ValueError, match="in the basis 'householder', but the head is in 'recursive'"):
        heads.LogitScaledHead(MaxSeparationHead(12, 5)).load_state_dict(head.state_dict())


def test_feature_maps_are_told_from_features_of_another_width():
    head = MaxSeparationHead(8, 5)
    with pytest.raises(ValueError, match=r"got shape \(2, 8, 4, 4\); pool feature maps first"):
        head(torch.randn(2, 8, 4, 4))
    with pytest.raises(ValueError, match=r"got shape \(2, 7\)"):
        head(torch.randn(2, 7))
