"""The Householder basis is the paper's simplex turned: every form of it is one map, in value and every derivative."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from maxsep import MaxSeparation, separate, simplex
from maxsep.ops import adjoint, cache
from maxsep.ops.dispatch import _choose
from maxsep.ops.householder import householder_adjoint, separate_householder

IMPLS = ["dense", "scan", "auto"]
H = "householder"
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    cache.clear_cache()
    torch.compiler.reset()


def wide_simplex(num_classes):
    return simplex(num_classes, basis=H, dtype=torch.float64)


def error(actual, reference):
    return ((actual.double() - reference).abs().max() / reference.abs().max()).item()


@given(
    shapes, st.integers(2, 400), st.floats(0.01, 100), st.sampled_from([torch.float64, torch.float32]), st.integers(0)
)
@settings(max_examples=80)
def test_every_form_equals_the_matrix_in_value_and_gradient(leading, num_classes, radius, dtype, seed):
    generator = torch.Generator().manual_seed(seed % 2**31)
    x = torch.randn(*leading, num_classes - 1, dtype=dtype, generator=generator).requires_grad_()
    g = torch.randn(*leading, num_classes, dtype=dtype, generator=generator)
    matrix = radius * wide_simplex(num_classes)
    slack = {"atol": (1e-12 if dtype == torch.float64 else 5e-6) * radius, "rtol": 0}
    for impl in IMPLS:
        result = separate(x, radius, basis=H, impl=impl)
        assert result.shape == (*leading, num_classes)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), x.double() @ matrix, **slack)
        (gradient,) = torch.autograd.grad(result, x, g)
        torch.testing.assert_close(gradient.double(), g.double() @ matrix.T, **slack)
        torch.testing.assert_close(
            result.double().sum(-1), x.new_zeros(leading).double(), atol=1e3 * slack["atol"], rtol=0
        )


@given(st.integers(2, 300), st.floats(0.01, 100))
@settings(max_examples=40)
def test_it_is_the_paper_basis_turned(num_classes, radius):
    k = num_classes - 1
    x = torch.randn(5, k, dtype=torch.float64)
    turned = k / num_classes * adjoint(separate(x), 1.0, H)  # (k/C) P_H P^T x
    torch.testing.assert_close(separate(turned, radius, basis=H), separate(x, radius), atol=1e-12 * radius, rtol=0)
    torch.testing.assert_close(turned.norm(dim=1), x.norm(dim=1))


@given(st.integers(2, 300))
@settings(max_examples=40)
def test_adjoint_identity_and_inverse(num_classes):
    k = num_classes - 1
    x, g = torch.randn(3, k, dtype=torch.float64), torch.randn(3, num_classes, dtype=torch.float64)
    forward, backward = (separate_householder(x, 0.3) * g).sum(), (x * householder_adjoint(g, 0.3)).sum()
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(householder_adjoint(separate_householder(x, 0.3), k / num_classes / 0.3), x)


def test_two_classes_are_those_of_the_paper():
    x = torch.randn(6, 1, dtype=torch.float64)
    torch.testing.assert_close(separate(x, 0.7, basis=H), separate(x, 0.7), rtol=1e-15, atol=0)


@pytest.mark.parametrize("impl", IMPLS)
def test_layouts(impl, laid_out):
    x = laid_out
    torch.testing.assert_close(separate(x, basis=H, impl=impl), x @ simplex(x.shape[-1] + 1, basis=H))


def adversarial(width):
    noise = torch.randn(1, width)
    yield from (noise, torch.ones(1, width), noise.abs(), 10 + noise, noise.pow(3) * 5)
    yield 1e4 * (1 - 2 * (torch.arange(width) % 2)).float()[None]


@pytest.mark.parametrize(("num_classes", "limit"), [(1_000, 1e-6), (100_000, 1e-6), (10_000_000, 1e-5)])
def test_float32_error_with_very_many_classes(num_classes, limit):
    for x in adversarial(num_classes - 1):
        assert error(separate(x, basis=H), separate_householder(x.double(), 1.0)) <= limit
    for g in adversarial(num_classes):
        off = (householder_adjoint(g, 1.0).double() - householder_adjoint(g.double(), 1.0)).abs().max()
        assert off / g.abs().max() <= limit  # P_H g of a constant g is zero: measured against what came in


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    for x in adversarial(99_999):
        low = x.clamp(-1e3, 1e3).to(dtype)
        result = separate(low, 0.01, basis=H, impl="scan")
        assert result.dtype == dtype
        assert error(result, separate_householder(low.double(), 0.01)) <= torch.finfo(dtype).eps / 2 * 1.001 + 1e-6
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = separate(torch.eye(99, dtype=torch.bfloat16), basis=H)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, simplex(100, basis=H), atol=1e-6, rtol=0)


@pytest.mark.parametrize("impl", IMPLS)
def test_derivatives_of_every_order_in_both_modes(impl):
    x = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)

    def function(x):
        return separate(x, 0.7, basis=H, impl=impl)

    everything = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(function, x, **everything)
    assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True, check_fwd_over_rev=True)
    g = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda g: householder_adjoint(g, 0.7), g, **everything)


def test_torch_func():
    x = torch.randn(4, 9, dtype=torch.float64)
    matrix = 0.7 * wide_simplex(10)

    def function(x):
        return separate(x, 0.7, basis=H, impl="scan")

    torch.testing.assert_close(torch.func.vmap(function)(x), x @ matrix)
    torch.testing.assert_close(torch.func.vmap(function, in_dims=1, out_dims=1)(x.T), (x @ matrix).T)
    torch.testing.assert_close(torch.func.jacrev(function)(x[0]), matrix.T)
    torch.testing.assert_close(torch.func.jacfwd(function)(x[0]), matrix.T)
    hessian = torch.func.hessian(lambda row: function(row).square().sum())(x[0])
    torch.testing.assert_close(hessian, 2 * matrix @ matrix.T)


@pytest.mark.parametrize(("num_classes", "backend"), [(10, "inductor"), (1_000, "aot_eager")])
def test_compiles_without_graph_breaks(num_classes, backend):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(separate, fullgraph=True, backend=counter)
    for batch, radius in ((4, 0.5), (7, 0.5), (16, 0.3), (5, 2.0)):
        x = torch.randn(batch, num_classes - 1, requires_grad=True)
        result, reference = compiled(x, radius, basis=H), separate(x, radius, basis=H)
        torch.testing.assert_close(result, reference, atol=1e-5, rtol=1e-5)
        g = torch.randn_like(reference)
        ours, theirs = (torch.autograd.grad(y, x, g)[0] for y in (result, reference))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert counter.frame_count <= 4


def test_exports_with_a_dynamic_batch():
    layer = MaxSeparation(10, radius=0.5, basis=H)
    program = torch.export.export(layer, (torch.randn(4, 9),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    x = torch.randn(7, 9)
    torch.testing.assert_close(program.module()(x), layer(x))
    assert not any("cumsum" in str(node.target) for node in program.graph.nodes)


def test_nothing_is_cached_but_the_small_matrix():
    separate(torch.randn(3, 9), basis=H, impl="scan")
    assert not cache._entries
    separate(torch.randn(3, 9), basis=H, impl="dense")
    separate(torch.randn(3, 9), impl="dense")
    assert len(cache._entries) == 2  # one for each basis


@pytest.mark.parametrize(
    ("batch", "num_classes", "expected"),
    [(128, 100, "dense"), (128, 200, "scan"), (4096, 20, "dense"), (4096, 50, "scan"), (1, 400, "dense")],
)
def test_auto_takes_what_is_faster_on_a_cpu(batch, num_classes, expected):
    assert _choose(torch.empty(batch, num_classes - 1), "auto", H) == expected


def test_meta_device_and_no_rows():
    assert separate(torch.empty(3, 999, device="meta"), basis=H).shape == (3, 1000)
    x = torch.randn(0, 9, requires_grad=True)
    (gradient,) = torch.autograd.grad(separate(x, basis=H, impl="scan").sum(), x)
    assert gradient.shape == (0, 9)


@pytest.mark.parametrize("bad", ["Householder", "", None, 1])
def test_bad_basis(bad):
    with pytest.raises(ValueError, match=r"basis must be one of recursive, householder, got .*Leave it out"):
        separate(torch.randn(3, 2), basis=bad)
