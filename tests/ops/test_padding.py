"""Padding changes shapes and nothing else: values and every derivative are those of the layer without it."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from maxsep import MaxSeparationHead, simplex
from maxsep.ops import linear, padding, separate_linear
from maxsep.ops.padding import linear_op, padded_layer, padded_linear, padded_op


@pytest.fixture
def tf32():
    """TensorFloat-32 is allowed, which means nothing to a CPU."""
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture
def gpu(monkeypatch):
    """A CPU takes the way of a GPU, in Triton's interpreter."""
    pytest.importorskip("triton", reason="no Triton for this platform")
    if torch.cuda.is_available():
        pytest.skip("tests/cuda runs the kernels compiled, not interpreted")
    torch.manual_seed(0)
    torch.compiler.reset()
    for module in (linear, padding):
        monkeypatch.setattr(module, "takes", lambda x: x.dtype != torch.float64)


def layer(leading, features, k, dtype=torch.float32, bias=True):
    x = torch.randn(*leading, features, dtype=dtype, requires_grad=True)
    weight = torch.randn(k, features, dtype=dtype, requires_grad=True)
    return x, weight, torch.randn(k, dtype=dtype, requires_grad=True) if bias else None


def off(ours, theirs):
    return ((ours.double() - theirs).abs().max() / theirs.abs().max()).item()


def no_kernel(*given):
    raise AssertionError("this is not for the kernel")


@pytest.fixture(params=["kernel", "copies"])
def way(request, monkeypatch):
    """Both ways to pad a layer."""
    if request.param == "kernel":
        pytest.importorskip("triton", reason="no Triton for this platform")
        if torch.cuda.is_available():
            pytest.skip("tests/cuda runs the kernel compiled, not interpreted")
    else:
        monkeypatch.setattr(padding, "is_interpreting", lambda: False)
        monkeypatch.setattr(padding, "_launch", no_kernel)
    return request.param


@pytest.mark.parametrize(("k", "width"), [(9, 4), (8, 4), (1, 4), (31, 7), (40, 300)])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_values_come_before_zeros(way, monkeypatch, k, width, dtype, bias):
    monkeypatch.setattr(padding, "BLOCK", 16 if k < 40 else 4096)
    given = layer((), width, k, bias=bias)[1:]
    results = padded_layer(*given, dtype)
    assert len(results[1]) == (0 if given[1] is None else -(-k // 8) * 8)
    for values, result in zip(given, results, strict=True):
        if values is None:
            continue
        expected = values if dtype is None else values.to(dtype)
        assert result.dtype == expected.dtype
        assert result.shape == (-(-k // 8) * 8, *values.shape[1:])
        # the interpreter cuts off where a GPU rounds
        assert off(result[:k], expected.double()) <= (torch.finfo(dtype).eps if dtype and way == "kernel" else 0)
        assert not result[k:].any()
        g = torch.randn_like(result)
        (gradient,) = torch.autograd.grad(result, values, g, retain_graph=True)
        assert torch.equal(gradient, g[:k].float())
    torch.library.opcheck(padded_op, (*given, dtype), atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("gpu")
def test_what_the_kernel_leaves_to_copies(monkeypatch):
    monkeypatch.setattr(padding, "_launch", no_kernel)
    weight, bias = torch.randn(4, 9).T, torch.randn(18)[::2]
    for w, b in ((weight, None), (weight.contiguous(), bias), (weight[:, :0], None), (weight.double(), None)):
        result, padded_bias = padded_layer(w, b, None)
        assert torch.equal(result[:9], w)
        assert b is None or torch.equal(padded_bias[:9], b)


def test_a_weight_and_a_bias_of_two_precisions(way):
    weight, bias = torch.randn(9, 4).bfloat16(), torch.randn(9)
    results = padded_layer(weight, bias, None)
    assert [result.dtype for result in results] == [torch.bfloat16, torch.float32]
    assert torch.equal(results[0][:9], weight)
    assert torch.equal(results[1][:9], bias)


def test_padding_has_derivatives_of_every_order():
    given = layer((), 2, 3, torch.float64)[1:]

    def squares(weight, bias):
        return [result.square() for result in padded_layer(weight, bias, None)]

    assert torch.autograd.gradcheck(squares, given)
    assert torch.autograd.gradgradcheck(squares, given)
    assert torch.autograd.gradgradcheck(lambda *a: [v.square() for v in padded_op(*a, None)], given)


@pytest.mark.parametrize("bias", [True, False])
def test_without_tensor_cores_only_rows_are_padded(bias):
    x, weight, b = layer((2, 3), 4, 9, torch.float64, bias)
    z = padded_linear(x, weight, b)
    assert z.stride() == (30, 10, 1)
    torch.testing.assert_close(z, F.linear(x, weight, b))
    inputs = [x, weight] + ([b] if bias else [])
    assert torch.autograd.gradcheck(lambda *a: padded_linear(*a, *[None] * (3 - len(a))), inputs)
    assert torch.autograd.gradgradcheck(lambda *a: padded_linear(*a, *[None] * (3 - len(a))), inputs)
    torch.library.opcheck(linear_op, (x.detach(), weight.detach().requires_grad_(), None))
    assert padded_linear(x, weight[:8], None).is_contiguous()


def test_padded_rows_of_one_sample_and_of_half_precision():
    x, weight, b = layer((), 4, 9)
    torch.testing.assert_close(padded_linear(x, weight, b), F.linear(x, weight, b))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = padded_linear(x[None], weight, b)
    assert z.dtype == torch.bfloat16
    assert z.stride() == (16, 1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("k", [9, 8, 1, 31])
def test_tensor_cores_get_whole_units(gpu, tf32, k, bias):
    x, weight, b = layer((2, 3), 4, k, bias=bias)
    z = padded_linear(x, weight, b)
    assert z.shape == (2, 3, -(-k // 8) * 8)
    assert z.is_contiguous()
    torch.testing.assert_close(z[..., :k], F.linear(x, weight, b))
    assert not z[..., k:].any()


def chosen(k, dtype, weight_dtype=None):
    """Whether outputs are padded for tensors that say they are on a GPU."""
    pytest.importorskip("triton", reason="no Triton for this platform")
    with FakeTensorMode():
        x = torch.empty(4, 64, dtype=dtype, device="cuda")
        return padding.is_padded(x, torch.empty(k, 64, dtype=weight_dtype or dtype, device="cuda"))


def test_where_outputs_are_padded():
    large = padding.COPIED_BYTES // 2 // 64
    assert chosen(999, torch.bfloat16)
    assert chosen(999, torch.float16)
    assert not chosen(1000, torch.bfloat16)
    assert not chosen(999, torch.float32)
    assert not chosen(999, torch.float64)
    assert chosen(large - 1, torch.bfloat16)
    assert not chosen(large + 1, torch.bfloat16)
    assert chosen(large + 1, torch.bfloat16, torch.float32)  # a cast writes a copy anyway
    assert not padding.is_padded(torch.empty(4, 8).bfloat16(), torch.empty(9, 8).bfloat16())
    seen = []
    torch.func.vmap(lambda x: seen.append(chosen(999, torch.bfloat16)) or x)(torch.zeros(1))
    assert seen == [False]


def test_float32_is_padded_where_tensorfloat32_is_allowed(tf32):
    assert chosen(999, torch.float32)
    assert not chosen(1004, torch.float32)  # 16 bytes are four floats
    assert not chosen(999, torch.float64)


@pytest.mark.parametrize(
    ("allow", "back"),
    [
        (lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest")),
        (
            lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
            lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", False),
        ),
    ],
)
def test_every_switch_for_tensorfloat32_is_seen(allow, back):
    allow()
    try:
        assert padding._allows_tf32()
    finally:
        back()
    assert not padding._allows_tf32()


@pytest.mark.parametrize("leading", [(7,), (2, 3), (1,), (), (0,)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("k", [29, 8])
def test_the_head_is_the_same_map(gpu, tf32, leading, bias, k):
    x, weight, b = layer(leading, 9, k, bias=bias)
    inputs = [x, weight] + ([b] if bias else [])
    wide = [t.detach().double().requires_grad_() for t in inputs]
    result = separate_linear(x, weight, b, 0.3)
    expected = 0.3 * F.linear(*wide) @ simplex(k + 1, dtype=torch.float64)
    assert result.shape == (*leading, k + 1)
    torch.testing.assert_close(result.double(), expected, atol=1e-5, rtol=1e-5)
    g = torch.randn_like(result)
    theirs = torch.autograd.grad(expected, wide, g.double())
    for a, c in zip(torch.autograd.grad(result, inputs, g), theirs, strict=True):
        torch.testing.assert_close(a.double(), c, atol=1e-5, rtol=1e-5)


def test_second_derivatives(gpu, tf32):
    inputs = layer((4,), 5, 11)
    wide = [t.detach().double().requires_grad_() for t in inputs]

    def second(result, inputs):
        first = torch.autograd.grad(result.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), inputs)

    expected = 0.7 * F.linear(*wide) @ simplex(12, dtype=torch.float64)
    for ours, theirs in zip(second(separate_linear(*inputs, 0.7), inputs), second(expected, wide), strict=True):
        assert off(ours, theirs) <= 1e-5


def test_many_gradients_at_once(gpu, tf32):
    x, weight, b = layer((3,), 4, 9)
    g = torch.randn(5, 3, 10)
    ours = torch.autograd.grad(separate_linear(x, weight, b, 1.0), [x, weight, b], g, is_grads_batched=True)
    theirs = torch.autograd.grad(F.linear(x, weight, b) @ simplex(10), [x, weight, b], g, is_grads_batched=True)
    for a, c in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, c)


@pytest.mark.parametrize("half", ["autocast", "parameters"])
def test_half_precision(gpu, half):
    head, x = MaxSeparationHead(9, 30, radius=0.5), torch.randn(7, 9, requires_grad=True)
    g = torch.randn(7, 30)
    if half == "parameters":
        head, x = head.bfloat16(), x.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half == "autocast"):
        result = head(x)
    assert result.dtype == (torch.float32 if half == "autocast" else torch.bfloat16)
    inputs = [x, head.weight, head.bias]
    wide = [t.detach().double().requires_grad_() for t in inputs]
    expected = 0.5 * F.linear(*wide) @ simplex(30, dtype=torch.float64)
    assert off(result, expected) <= 1e-2
    ours = torch.autograd.grad(result, inputs, g.to(result.dtype))
    for a, c, t in zip(ours, torch.autograd.grad(expected, wide, g.double()), inputs, strict=True):
        assert a.dtype == t.dtype
        assert a.shape == t.shape
        assert off(a, c) <= 2e-2


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_graph_breaks(gpu, tf32, backend):
    head, x = MaxSeparationHead(9, 30), torch.randn(7, 9, requires_grad=True)
    seen = []

    def count(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch.compile(head, fullgraph=True, backend=count)(x)
    assert sum("padded" in target for target in seen) == 1  # weight and bias together
    result = torch.compile(head, fullgraph=True, backend=backend)(x)
    expected = head(x)
    torch.testing.assert_close(result, expected)
    g, inputs = torch.randn_like(result), [x, *head.parameters()]
    for a, c in zip(torch.autograd.grad(result, inputs, g), torch.autograd.grad(expected, inputs, g), strict=True):
        torch.testing.assert_close(a, c)


def test_precisions_are_not_mixed_silently(gpu):
    x, weight, b = layer((3,), 4, 9)
    with pytest.raises(RuntimeError, match="dtype"):
        padded_linear(x.bfloat16(), weight, None)
    with pytest.raises(RuntimeError, match="dtype"):
        padded_linear(x.bfloat16(), weight.bfloat16(), b)
