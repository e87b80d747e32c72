"""The paper's head and layer: formula, class order, conversion of plain layers, state dicts."""

import copy
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maxsep import MaxSeparation, MaxSeparationHead, simplex

ORDER = [3, 1, 4, 0, 2]


@pytest.fixture
def x():
    return torch.randn(7, 12, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("order", [None, ORDER])
def test_formula(x, order, bias):
    head = MaxSeparationHead(12, 5, 0.3, bias, class_order=order)
    z = x @ head.weight.T + (head.bias if bias else 0)
    in_columns = 0.3 * z @ simplex(5)
    expected = in_columns if order is None else torch.empty_like(in_columns)
    for column, label in enumerate(order or []):
        expected[:, label] = in_columns[:, column]
    torch.testing.assert_close(head(x), expected)
    torch.testing.assert_close(head.features(x), z)
    torch.testing.assert_close(0.3 * z @ head.class_vectors().T, expected)
    torch.testing.assert_close(nn.functional.linear(x, *head.linear_form()), expected)
    torch.testing.assert_close(MaxSeparation(5, 0.3, order)(z), expected)
    keys = {"weight", "_extra_state"} | ({"bias"} if bias else set()) | ({"class_order"} if order else set())
    assert set(head.state_dict()) == keys
    assert (str(ORDER) in repr(head)) == bool(order)


@pytest.mark.parametrize(
    "order",
    [[0, 1, 2, 3], [0, 1, 2, 3, 3], [1, 2, 3, 4, 5], [0.0, 1, 2, 3, 4], [[0, 1, 2, 3, 4]], [False] * 5, "abc", 3, {}],
)
def test_what_is_no_permutation_is_refused(order):
    for build in (lambda: MaxSeparationHead(12, 5, class_order=order), lambda: MaxSeparation(5, class_order=order)):
        with pytest.raises(ValueError, match=f"class_order.*{re.escape(repr(order))}"):
            build()


@pytest.mark.parametrize("build", [lambda o: MaxSeparationHead(4, 5, class_order=o), lambda o: MaxSeparation(5, 1, o)])
def test_a_state_dict_of_another_order_is_refused(build):
    for saved, own in ((ORDER, None), (None, ORDER), (ORDER, ORDER[::-1])):
        head = build(own)
        before = copy.deepcopy(head.state_dict())
        with pytest.raises(ValueError, match="class_order"):
            head.load_state_dict(build(saved).state_dict())
        torch.testing.assert_close(head.state_dict(), before, atol=0, rtol=0)
        head.load_state_dict({"elsewhere": torch.zeros(2)}, strict=False)
    for order in (torch.tensor(ORDER), np.array(ORDER[::-1])[::-1]):
        build(ORDER).load_state_dict(build(order).state_dict())


def test_the_order_survives_copies_half_and_empty_tensors(x):
    for build, values in (
        (lambda: MaxSeparationHead(12, 5, class_order=ORDER), x),
        (lambda: MaxSeparation(5, class_order=ORDER), x[:, :4]),
    ):
        head = build()
        expected = head(values)
        for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head)), copy.deepcopy(head).half()):
            assert other.class_order.dtype == torch.int64
            assert other.class_order.tolist() == ORDER
            torch.testing.assert_close(other.float()(values), expected, atol=1e-2, rtol=1e-2)
        with torch.device("meta"):
            empty, assigned = build(), build()
        assert empty.class_order.is_meta
        empty.to_empty(device="cpu")
        assert empty.class_order.tolist() == ORDER
        assigned.load_state_dict(head.state_dict(), assign=True)
        empty.load_state_dict(head.state_dict())
        assert torch.equal(empty(values), expected)
        assert torch.equal(assigned(values), expected)


@given(
    st.integers(1, 20), st.permutations(range(7)) | st.none(), st.integers(2, 60), st.floats(0.01, 100), st.booleans()
)
@settings(max_examples=50)
def test_from_linear_keeps_every_probability(in_features, order, num_classes, radius, bias):
    num_classes = num_classes if order is None else len(order)
    linear = nn.Linear(in_features, num_classes, bias=bias, dtype=torch.float64)
    head = MaxSeparationHead.from_linear(linear, radius, class_order=order)
    x = torch.randn(9, in_features, dtype=torch.float64)
    torch.testing.assert_close(head(x).softmax(-1), linear(x).softmax(-1), atol=1e-12, rtol=1e-12)
    folded = head.folded()
    torch.testing.assert_close(folded(x), linear(x) - linear(x).mean(-1, keepdim=True), atol=1e-12, rtol=1e-9)
    again = MaxSeparationHead.from_linear(folded, radius, class_order=order)
    torch.testing.assert_close(again.weight, head.weight, atol=1e-11, rtol=1e-9)


def test_from_linear_keeps_mode_dtype_and_what_is_trained():
    linear = nn.Linear(6, 4).to(torch.bfloat16).eval()
    linear.bias.requires_grad_(False)
    head = MaxSeparationHead.from_linear(linear)
    assert (head.weight.dtype, head.training) == (torch.bfloat16, False)
    assert (head.weight.requires_grad, head.bias.requires_grad) == (True, False)
    half = nn.Linear(6, 300).to(torch.bfloat16)  # rounded once
    exact = MaxSeparationHead.from_linear(copy.deepcopy(half).double()).weight
    torch.testing.assert_close(MaxSeparationHead.from_linear(half).weight.double(), exact, rtol=2**-8, atol=1e-5)
    with pytest.raises(TypeError, match="linear"):
        MaxSeparationHead.from_linear(nn.Conv2d(1, 1, 1))


def test_a_large_common_shift_costs_no_digits():
    linear, x = nn.Linear(6, 50), torch.randn(20, 6)
    with torch.no_grad():
        linear.bias.add_(1e4)
    head = MaxSeparationHead.from_linear(linear)
    expected = (x.double() @ linear.weight.double().T + linear.bias.double()).softmax(-1)
    assert (head(x).softmax(-1) - expected).abs().max() < 2e-6 + 1e-3 * expected.max()
    assert head.bias.abs().max() < 2  # the shift is gone, not carried along


def test_state_dicts_of_another_size_or_radius_are_refused_before_anything_is_copied():
    head = MaxSeparationHead(12, 5)
    before = head.weight.clone()
    for other, argument in ((MaxSeparationHead(12, 6), "num_classes"), (MaxSeparationHead(12, 5, 0.1), "radius")):
        with pytest.raises(ValueError, match=argument):
            head.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"'1.weight'.*from_linear"):
        nn.Sequential(nn.Linear(3, 12), head).load_state_dict(
            nn.Sequential(nn.Linear(3, 12), nn.Linear(12, 5)).state_dict(), strict=False
        )
    with pytest.raises(ValueError, match="radius"):
        MaxSeparation(5).load_state_dict(MaxSeparation(5, 0.1).state_dict())
    assert torch.equal(head.weight, before)


def test_rounded_and_averaged_state_dicts_load():
    states = [MaxSeparationHead(12, 5, radius=0.3, class_order=ORDER).state_dict() for _ in range(3)]
    averaged = {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}
    head = MaxSeparationHead(12, 5, radius=0.3, class_order=ORDER)
    for assign in (False, True):
        head.load_state_dict(averaged, assign=assign)
        assert (head.class_order.tolist(), head.state_dict()["class_order"].dtype) == (ORDER, torch.int64)
    head.load_state_dict({name: t.bfloat16() for name, t in states[0].items()})
    with pytest.raises(ValueError, match="radius"):
        MaxSeparationHead(12, 5, radius=0.30001, class_order=ORDER).load_state_dict(averaged)


def test_the_extra_state_is_exact_after_half():
    state = MaxSeparationHead(12, 5, radius=0.1).half().float().get_extra_state()
    assert (state.tolist(), state.dtype, state.device.type) == ([5.0, 0.1], torch.float64, "cpu")
    with torch.device("meta"):
        assert MaxSeparationHead(12, 5).get_extra_state().device.type == "cpu"


@pytest.mark.parametrize("order", [None, ORDER])
def test_exports_to_plain_operations_for_any_batch(x, order):
    head = MaxSeparationHead(12, 5, class_order=order).eval()
    program = torch.export.export(head, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    assert not any("maxsep" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x[:3]), head(x[:3]))


def test_a_rounded_class_order_is_refused_and_changes_nothing():
    order = torch.randperm(3_000)
    head = MaxSeparationHead(4, 3_000, class_order=order)
    with pytest.raises(ValueError, match="class_order"):
        head.load_state_dict({name: value.half() for name, value in head.state_dict().items()})
    for values in (head.class_order, head.state_dict()["class_order"], *head.buffers()):
        values.zero_()  # somebody averages buffers in place
    assert torch.equal(head.class_order, order)
    assert torch.equal(head.state_dict()["class_order"], order)
    assert torch.equal(head.class_columns, order.argsort())
