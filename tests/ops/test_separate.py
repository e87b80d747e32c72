"""`separate` is the matrix: values, gradients, precision, and every way of running a torch program."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

from maxsep import MaxSeparation, separate, simplex
from maxsep.ops import adjoint, separate_linear
from maxsep.ops.separate import separate_to

F64 = torch.float64


def error(actual, reference):
    """The measure of the whole project: largest difference over largest logit."""
    return ((actual.double() - reference).abs().max() / reference.abs().max()).item()


class Anywhere(torch.nn.Module):
    def forward(self, x):
        return separate(x)


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(shapes, st.integers(2, 400), st.sampled_from([1.0, 0.1, 7.5]), st.integers(0, 99))
@settings(max_examples=80)
def test_values_and_gradients_equal_the_matrix(leading, num_classes, radius, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*leading, num_classes - 1, dtype=F64, generator=generator, requires_grad=True)
    g = torch.randn(*leading, num_classes, dtype=F64, generator=generator)
    matrix = radius * simplex(num_classes, dtype=F64)
    result = separate(x, radius)
    tolerance = {"atol": 1e-12 * radius, "rtol": 1e-12}
    torch.testing.assert_close(result, x @ matrix, **tolerance)
    torch.testing.assert_close(torch.autograd.grad(result, x, g)[0], g @ matrix.T, **tolerance)
    torch.testing.assert_close(adjoint(result, (num_classes - 1) / num_classes / radius**2), x / radius)


def test_layouts(laid_out):
    torch.testing.assert_close(separate(laid_out, 0.5), 0.5 * laid_out @ simplex(laid_out.shape[-1] + 1))


def adversarial(batch, width):
    noise = torch.randn(batch, width, generator=torch.Generator().manual_seed(0))
    yield noise
    yield torch.ones(batch, width)
    yield 10 + noise
    yield noise.pow(3) * 5
    yield 1e4 * (1 - 2 * (torch.arange(width) % 2)).expand(batch, width).float()


@pytest.mark.parametrize(("num_classes", "limit"), [(1_000, 1e-6), (100_000, 1e-6), (1_000_000, 1e-5)])
def test_float32_error(num_classes, limit):
    for x in adversarial(1, num_classes - 1):
        assert error(separate(x), separate(x.double())) <= limit
    for g in adversarial(1, num_classes):
        reference = adjoint(g.double(), 1.0)  # of a constant g it is zero: measure against the gradient that came in
        assert ((adjoint(g, 1.0).double() - reference).abs().max() / g.abs().max()).item() <= limit


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_classes", [10, 100_000])
def test_half_precision_is_summed_in_float32(dtype, num_classes):
    for x in adversarial(1, num_classes - 1):
        low = x.clamp(-1e3, 1e3).to(dtype)
        result = separate(low)
        assert result.dtype == dtype
        # one rounding to the storage type, and nothing else: a 16-bit accumulator would be off by whole units
        assert error(result, separate(low.double())) <= torch.finfo(dtype).eps / 2 * 1.001 + 1e-6


def test_autocast_returns_float32_with_the_exact_geometry():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = separate(torch.eye(999, dtype=torch.bfloat16))
        assert separate(torch.eye(9, dtype=F64)).dtype == F64
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, simplex(1000), atol=1e-6, rtol=0)


def test_derivatives_of_every_order_and_mode():
    x = torch.randn(3, 5, dtype=F64, requires_grad=True)
    everything = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(lambda x: separate(x, 0.7), x, **everything)
    assert torch.autograd.gradgradcheck(lambda x: separate(x, 0.7), x, check_batched_grad=True, check_fwd_over_rev=True)


def test_torch_func():
    x = torch.randn(4, 9, dtype=F64)
    matrix = 0.7 * simplex(10, dtype=F64)

    def square(row):
        return separate(row, 0.7).square().sum()

    torch.testing.assert_close(torch.func.vmap(lambda x: separate(x, 0.7), in_dims=1, out_dims=1)(x.T), (x @ matrix).T)
    torch.testing.assert_close(torch.func.jacrev(lambda x: separate(x, 0.7))(x[0]), matrix.T)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(square))(x), 2 * x @ matrix @ matrix.T)
    torch.testing.assert_close(torch.func.hessian(square)(x[0]), 2 * matrix @ matrix.T)


def test_gradients_in_blocks_of_rows(monkeypatch):
    monkeypatch.setattr(importlib.import_module("maxsep.ops.separate"), "BLOCK", 8)
    for shape in ((7, 29), (2, 3, 29), (29,), (0, 29)):
        x = torch.randn(shape, dtype=F64, requires_grad=True)
        g = torch.randn(2, *shape[:-1], 30, dtype=F64)
        result, matrix = separate(x, 0.3), 0.3 * simplex(30, dtype=F64)
        (together,) = torch.autograd.grad(result, x, g, is_grads_batched=True, retain_graph=True)
        torch.testing.assert_close(together, g @ matrix.T)
        torch.testing.assert_close(torch.autograd.grad(result, x, g[0])[0], together[0])


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiles_without_graph_breaks(backend):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(separate, fullgraph=True, backend=counter, dynamic=None)
    for batch in (4, 7, 16, 31):
        x, g = torch.randn(batch, 9, requires_grad=True), torch.randn(batch, 10)
        result = compiled(x, 0.5)
        torch.testing.assert_close(result, separate(x, 0.5))
        torch.testing.assert_close(torch.autograd.grad(result, x, g)[0], 0.5 * g @ simplex(10).T)
    assert counter.frame_count <= 3  # a first compilation, one for a dynamic batch, one to spare
    for radius in (1.0, 0.1, 0.3):  # from the second one on a symbol
        module = torch.compile(MaxSeparation(10, radius), fullgraph=True, backend="eager")
        torch.testing.assert_close(module(x), separate(x, radius))


def test_exports_for_any_number_of_classes():
    sizes = {"x": {0: torch.export.Dim("batch"), 1: torch.export.Dim("outputs", min=2, max=1000)}}
    program = torch.export.export(Anywhere(), (torch.randn(3, 9),), dynamic_shapes=sizes)
    x = torch.randn(4, 20)
    torch.testing.assert_close(program.module()(x), separate(x))


def test_coefficients_are_kept_for_real_tensors_only():
    """A fake, transformed or inference tensor among those kept would break the real call after it."""
    width = iter(range(71, 80))

    def then_real(call):
        k = next(width)
        call(k)
        x = torch.randn(2, k, requires_grad=True)
        result = separate(x)
        (gradient,) = torch.autograd.grad(result.square().sum(), x)
        assert type(gradient) is torch.Tensor
        torch.testing.assert_close(gradient, 2 * (k + 1) / k * x.detach(), atol=1e-5, rtol=1e-5)
        call(k)

    def fake(k):
        with FakeTensorMode() as mode:
            assert separate(mode.from_tensor(torch.randn(2, k))).shape == (2, k + 1)

    def inference(k):
        with torch.inference_mode():
            assert separate(torch.randn(2, k)).is_inference()

    then_real(fake)
    then_real(inference)
    then_real(lambda k: torch.func.vmap(separate)(torch.randn(3, k)))
    then_real(lambda k: torch.func.grad(lambda row: separate(row).sum())(torch.randn(k)))
    then_real(lambda k: separate(torch.empty(3, k, device="meta")))
    assert separate(torch.empty(3, 9, device="meta")).device.type == "meta"


@pytest.mark.parametrize("batch", [3, 40])
@pytest.mark.parametrize("dtype", [F64, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_in_front(batch, dtype, autocast):
    """P goes into the weight where there are more samples than features, and behind the product elsewhere."""
    x, weight, bias = (torch.randn(*shape).to(dtype).requires_grad_() for shape in ((batch, 6), (20, 6), (20,)))
    wide = [t.detach().double().requires_grad_() for t in (x, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = separate_linear(x, weight, bias, 0.5)
    expected = 0.5 * torch.nn.functional.linear(*wide) @ simplex(21, dtype=F64)
    g, tolerance = torch.randn(batch, 21, dtype=F64), 1e-12 if dtype == F64 else 2e-2
    assert logits.dtype == (torch.float32 if autocast and dtype != F64 else dtype)
    assert error(logits, expected) <= tolerance
    ours = torch.autograd.grad(logits, (x, weight, bias), g.to(logits.dtype))
    for a, b in zip(ours, torch.autograd.grad(expected, wide, g), strict=True):
        assert error(a, b) <= tolerance


@pytest.mark.parametrize("samples", [3, 40])
def test_a_layer_on_another_device_is_refused(samples):
    """torch multiplies by a weight on the meta device, which has no values, without an error."""
    x, weight = torch.randn(samples, 6), torch.randn(20, 6)
    for inputs, rows in ((x, weight.to("meta")), (x.to("meta"), weight)):
        with pytest.raises(ValueError, match="device"):
            separate_linear(inputs, rows, None, 0.5)
    assert separate_linear(x.to("meta"), weight.to("meta"), None, 0.5).shape == (samples, 21)


class Tagged(torch.Tensor):
    """A subclass: whatever it intercepts, it must see every operation."""


def test_subclasses_of_tensors_stay():
    x, weight, bias = torch.randn(3, 6), torch.randn(20, 6), torch.randn(20)
    expected = separate_linear(x, weight, bias, 0.5)
    for inputs, rows in ((x, weight.as_subclass(Tagged)), (x.as_subclass(Tagged), weight)):
        logits = separate_linear(inputs, rows, bias, 0.5)
        assert type(logits) is Tagged
        torch.testing.assert_close(logits.as_subclass(torch.Tensor), expected)


def test_logits_are_no_view():
    """FSDP2 warns of one: operations in place on it would drop its hooks."""
    for shape in ((3, 6), (2, 3, 6)):
        assert not separate_linear(torch.randn(shape), torch.randn(20, 6), None, 1.0)._is_view()


def test_another_precision_of_the_result():
    x = torch.randn(3, 9).bfloat16().requires_grad_()
    result = separate_to(x, 1.0, torch.float32)
    assert error(result, separate(x.double())) <= 1e-6
    assert torch.autograd.grad(result.sum(), x)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("x", "radius", "kind", "name"),
    [
        (torch.randn(3, 0), 1.0, ValueError, "x must"),
        (torch.ones(3, 2, dtype=torch.int64), 1.0, TypeError, "x must"),
        ([1.0, 2.0], 1.0, TypeError, "x must"),
        (torch.randn(3, 2), 0, ValueError, "radius must"),
        (torch.randn(3, 2), float("nan"), ValueError, "radius must"),
        (torch.randn(3, 2), torch.tensor(1.0), TypeError, "radius must"),
    ],
)
def test_bad_input(x, radius, kind, name):
    with pytest.raises(kind, match=name):
        separate(x, radius)
