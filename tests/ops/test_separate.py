"""Every form of the product is the same map: values, gradients, precision, execution modes."""

import copy
import pickle
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from maxsep.ops.scan import separate_adjoint, separate_scan
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from maxsep import MaxSeparation, separate, simplex
from maxsep.ops import cache

IMPLS = ["dense", "scan", "auto"]


@pytest.fixture(autouse=True)
def _fresh_cache():
    cache.clear_cache()
    torch.compiler.reset()


def error(actual, reference):
    """The measure of the whole project: largest difference over largest logit."""
    return ((actual.double() - reference).abs().max() / reference.abs().max()).item()


shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(shapes, st.integers(2, 400), st.sampled_from([1.0, 0.1, 7.5]), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_every_form_equals_the_matrix(leading, num_classes, radius, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*leading, num_classes - 1, dtype=torch.float64, generator=generator)
    reference = radius * x @ simplex(num_classes, dtype=torch.float64)
    for impl in IMPLS:
        result = separate(x, radius, impl=impl)
        assert result.shape == (*leading, num_classes)
        torch.testing.assert_close(result, reference, atol=1e-12 * radius, rtol=1e-12)
        assert result.sum(-1).abs().max() <= 1e-11 * radius if result.numel() else True


@given(num_classes=st.integers(2, 300), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_adjoint_identity_and_inverse(num_classes, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, num_classes - 1, dtype=torch.float64, generator=generator)
    g = torch.randn(3, num_classes, dtype=torch.float64, generator=generator)
    forward, backward = (separate_scan(x, 0.3) * g).sum(), (x * separate_adjoint(g, 0.3)).sum()
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-12)
    k = num_classes - 1
    torch.testing.assert_close(separate_adjoint(separate_scan(x, 0.3), k / num_classes / 0.3), x)


@pytest.mark.parametrize("impl", IMPLS)
def test_layouts(impl, laid_out):
    x = laid_out
    torch.testing.assert_close(separate(x, impl=impl), x @ simplex(x.shape[-1] + 1))


@pytest.mark.parametrize("num_classes", [1_000, 5_000])
def test_float32_error_against_the_dense_reference(num_classes):
    for x in adversarial(4, num_classes - 1):
        reference = x.double() @ simplex(num_classes, dtype=torch.float64)
        assert error(separate(x, impl="scan"), reference) <= 1e-6
        assert error(separate_scan(x.double(), 1.0), reference) <= 1e-12


@pytest.mark.parametrize(("num_classes", "limit"), [(100_000, 1e-6), (1_000_000, 1e-5), (10_000_000, 1e-5)])
def test_float32_error_with_very_many_classes(num_classes, limit):
    for x in adversarial(1, num_classes - 1):
        assert error(separate(x), separate_scan(x.double(), 1.0)) <= limit
        del x


@pytest.mark.parametrize(("num_classes", "limit"), [(1_000, 1e-6), (100_000, 1e-6), (1_000_000, 1e-5)])
def test_float32_gradient_error(num_classes, limit):
    for g in adversarial(1, num_classes):
        x = torch.zeros(1, num_classes - 1, requires_grad=True)
        separate(x, impl="scan").backward(g)
        reference = separate_adjoint(g.double(), 1.0)
        scale = g.abs().max().double()  # P g of a constant g is zero: measure against the gradient that came in
        assert ((x.grad.double() - reference).abs().max() / scale).item() <= limit


def adversarial(batch, width):
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(batch, width, generator=generator)
    yield noise
    yield torch.ones(batch, width)
    yield noise.abs()
    yield 10 + noise
    yield noise.pow(3) * 5
    yield 1e4 * (1 - 2 * (torch.arange(width) % 2)).expand(batch, width).float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_classes", [10, 1_000, 100_000])
def test_half_precision_is_summed_in_float32(dtype, num_classes):
    for x in adversarial(1, num_classes - 1):
        low = x.clamp(-1e3, 1e3).to(dtype)
        result = separate(low, impl="scan")
        assert result.dtype == dtype
        reference = separate_scan(low.double(), 1.0)
        # One rounding to the storage type, and nothing else: a 16-bit accumulator would be off by whole units.
        assert error(result, reference) <= torch.finfo(dtype).eps / 2 * 1.001 + 1e-6
        assert error(separate(low.float(), impl="scan"), reference) <= 1e-6


@pytest.mark.parametrize("impl", IMPLS)
def test_autocast_returns_float32_with_the_exact_geometry(impl):
    num_classes = 1_000
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = separate(torch.eye(num_classes - 1, dtype=torch.bfloat16), impl=impl)
    assert vectors.dtype == torch.float32
    gram = vectors.T.double() @ vectors.double()
    off = gram - torch.full_like(gram, -1 / (num_classes - 1)).fill_diagonal_(1)
    assert (num_classes - 1) * off.abs().max() <= 0.05


def test_autocast_geometry_with_10000_classes():
    num_classes = 10_000
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = separate(torch.eye(num_classes - 1, dtype=torch.bfloat16)[::500])
    reference = simplex(num_classes, dtype=torch.float64)[::500]
    assert (num_classes - 1) * (rows.double() @ rows.double().T - reference @ reference.T).abs().max() <= 0.05


@pytest.mark.parametrize("impl", ["dense", "scan"])
def test_derivatives_of_every_order_and_mode(impl):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def function(x):
        return separate(x, 0.7, impl=impl)

    everything = {"check_batched_grad": True, "check_forward_ad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(function, x, **everything)
    assert torch.autograd.gradgradcheck(function, x, check_batched_grad=True, check_fwd_over_rev=True)


def test_torch_func():
    x = torch.randn(4, 9, dtype=torch.float64)
    expected = 0.7 * simplex(10, dtype=torch.float64)

    def function(x):
        return separate(x, 0.7, impl="scan")

    torch.testing.assert_close(torch.func.vmap(function)(x), x @ expected)
    torch.testing.assert_close(torch.func.vmap(function, in_dims=1, out_dims=1)(x.T), (x @ expected).T)
    torch.testing.assert_close(torch.func.jacrev(function)(x[0]), expected.T)
    torch.testing.assert_close(torch.func.jacfwd(function)(x[0]), expected.T)
    gradient = torch.func.vmap(torch.func.grad(lambda row: function(row).square().sum()))(x)
    torch.testing.assert_close(gradient, 2 * x @ expected @ expected.T)
    hessian = torch.func.hessian(lambda row: function(row).square().sum())(x[0])
    torch.testing.assert_close(hessian, 2 * expected @ expected.T)


@pytest.mark.parametrize(("num_classes", "backend"), [(10, "inductor"), (1_000, "aot_eager")])
def test_compiles_without_graph_breaks_and_without_filling_the_cache(num_classes, backend):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(separate, fullgraph=True, backend=counter, dynamic=None)
    for batch in (4, 7, 16, 31, 5):
        x = torch.randn(batch, num_classes - 1, requires_grad=True)
        result = compiled(x, 0.5)
        assert not cache._entries
        reference = separate(x, 0.5)
        torch.testing.assert_close(result, reference, atol=1e-6, rtol=1e-6)
        g = torch.randn_like(reference)
        ours, theirs = (torch.autograd.grad(y, x, g)[0] for y in (result, reference))
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        cache.clear_cache()
    assert counter.frame_count <= 3  # a first compilation, one for a dynamic batch, one to spare


def test_exports_with_a_dynamic_batch_and_to_another_process():
    layer = MaxSeparation(10, radius=0.5)
    x = torch.randn(4, 9)
    program = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    assert not cache._entries
    other = torch.randn(7, 9)
    torch.testing.assert_close(program.module()(other), layer(other))


def test_fake_tensors_do_not_reach_the_cache():
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = separate(torch.randn(2, 9), impl="scan")  # fills the cache with real tensors: a trap for the fake call
    with FakeTensorMode() as mode:
        fake = separate(mode.from_tensor(torch.randn(2, 9)), impl="scan")
    assert fake.shape == (2, 10)
    assert all(type(t) is torch.Tensor for pair in cache._entries.values() for t in pair)
    assert separate(torch.randn(2, 9), impl="scan").shape == real.shape


def test_inference_mode_reads_but_never_fills_the_cache():
    with torch.inference_mode():
        separate(torch.randn(2, 9))
        separate(torch.randn(2, 999))
        assert not cache._entries
    x = torch.randn(2, 999, requires_grad=True)
    separate(x).sum().backward()
    assert len(cache._entries) == 1
    with torch.inference_mode():
        assert separate(torch.randn(2, 999)).is_inference()


def test_functorch_transforms_do_not_fill_the_cache():
    torch.func.vmap(lambda row: separate(row, impl="scan"))(torch.randn(3, 9))
    torch.func.grad(lambda row: separate(row, impl="scan").sum())(torch.randn(9))
    x = torch.randn(2, 9, requires_grad=True)
    separate(x, impl="scan").sum().backward()
    torch.testing.assert_close(x.grad, torch.zeros(2, 9), atol=1e-6, rtol=0)


def test_cache_is_bounded_and_keeps_no_large_matrix():
    for num_classes in range(2, 60):
        separate(torch.randn(1, num_classes - 1), impl="scan")
    assert len(cache._entries) == cache.MAX_ENTRIES
    separate(torch.randn(1, 600), impl="dense")
    assert not any(key[0].startswith("simplex") and key[1] > cache.KEPT_DENSE_UP_TO for key in cache._entries)


def test_cache_serves_threads():
    results, errors = [], []

    def work(seed):
        try:
            for step in range(50):
                width = 3 + (seed * step) % 40
                x = torch.randn(2, width)
                results.append(torch.allclose(separate(x, impl="scan"), x @ simplex(width + 1), atol=1e-5))
        except Exception as caught:
            errors.append(caught)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(results) == 400
    assert all(results)


def test_meta_device():
    assert separate(torch.empty(3, 9, device="meta"), impl="scan").shape == (3, 10)
    assert separate(torch.empty(3, 9, device="meta")).device.type == "meta"
    assert not cache._entries


def test_memory_is_linear_in_the_classes():
    """A million classes: three buffers of the batch at most, where the matrix would need four terabytes."""
    x = torch.randn(4, 999_999, requires_grad=True)
    separate(x).square().sum().backward()
    assert x.grad.shape == x.shape


@pytest.mark.parametrize(
    ("batch", "num_classes", "expected"),
    [(128, 100, "dense"), (128, 190, "dense"), (128, 300, "scan"), (4096, 50, "dense"), (4096, 100, "scan"),
     (1, 400, "dense"), (1, 600, "scan")],
)  # fmt: skip
def test_auto_takes_what_is_faster_on_a_cpu(monkeypatch, batch, num_classes, expected):
    taken = []
    table = {name: lambda x, radius, name=name: taken.append(name) or x for name in ("dense", "scan")}
    monkeypatch.setattr("maxsep.ops.dispatch._IMPLEMENTATIONS", {"recursive": table})
    separate(torch.randn(batch, num_classes - 1))
    assert taken == [expected]


def test_module_moves_copies_and_pickles():
    layer = MaxSeparation(10, radius=0.5)
    x = torch.randn(3, 9)
    expected = layer(x)
    assert not list(layer.parameters())
    assert not list(layer.buffers())
    assert repr(layer) == "MaxSeparation(num_classes=10, radius=0.5)"
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.half().float(), layer.to("cpu")):
        assert torch.equal(twin(x), expected)
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(4, 9), MaxSeparation(10, radius=0.5))
    ready = empty.to_empty(device="cpu")
    assert torch.equal(ready[1](x), expected)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    ("x", "radius", "kind", "told"),
    [
        (torch.randn(3, 0), 1.0, ValueError, "must hold the C-1 outputs, got shape (3, 0)"),
        (torch.tensor(1.0), 1.0, ValueError, "got shape ()"),
        (torch.ones(3, 2, dtype=torch.int64), 1.0, TypeError, "got dtype torch.int64"),
        (torch.ones(3, 2, dtype=torch.complex64), 1.0, TypeError, "got dtype torch.complex64"),
        (torch.ones(3, 2, dtype=torch.bool), 1.0, TypeError, "got dtype torch.bool"),
        ([1.0, 2.0], 1.0, TypeError, "x must be a tensor, got list [1.0, 2.0]"),
        (torch.randn(3, 2), 0, ValueError, "radius must be positive and finite, got 0"),
        (torch.randn(3, 2), -1.0, ValueError, "got -1.0"),
        (torch.randn(3, 2), float("inf"), ValueError, "got inf"),
        (torch.randn(3, 2), float("nan"), ValueError, "got nan"),
        (torch.randn(3, 2), True, TypeError, "radius must be a number, got bool True"),
        (torch.randn(3, 2), "1", TypeError, "got str '1'"),
        (torch.randn(3, 2), torch.tensor(1.0), TypeError, "radius must be a number"),
    ],
)
def test_bad_input(impl, x, radius, kind, told):
    with pytest.raises(kind) as caught:
        separate(x, radius, impl=impl)
    assert told in str(caught.value)


def test_bad_implementation():
    with pytest.raises(ValueError, match="impl must be one of auto, dense, scan, triton, got 'fast'"):
        separate(torch.randn(3, 2), impl="fast")


def test_module_refuses_the_wrong_width():
    with pytest.raises(ValueError, match=r"must be num_classes - 1 = 9, got shape \(3, 10\)"):
        MaxSeparation(10)(torch.randn(3, 10))


def test_module_refuses_a_state_dict_of_another_head():
    state = MaxSeparation(10, radius=0.1).state_dict()
    MaxSeparation(10, radius=0.1).load_state_dict(state)
    with pytest.raises(ValueError, match=r"radius=0\.1, the head has 1"):
        MaxSeparation(10).load_state_dict(state)
    with pytest.raises(ValueError, match="num_classes=10, the head has 11"):
        MaxSeparation(11, radius=0.1).load_state_dict(state)


def test_gradient_in_blocks_of_rows_equals_the_matrix(monkeypatch):
    monkeypatch.setattr("maxsep.ops.scan.BLOCK", 8)
    for shape in ((7, 29), (2, 3, 29), (29,), (0, 29)):
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        g = torch.randn(*shape[:-1], 30, dtype=torch.float64)
        (gradient,) = torch.autograd.grad(separate(x, 0.3, impl="scan"), x, g)
        torch.testing.assert_close(gradient, 0.3 * g @ simplex(30, dtype=torch.float64).T)


def test_a_gradient_of_one_long_row():
    x = torch.randn(200_000, requires_grad=True)
    separate(x).square().sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * 200_001 / 200_000, atol=1e-4, rtol=1e-4)


def test_many_radii_compile_without_graph_breaks():
    for radius in (1.0, 0.1, 0.3, 2.0):  # no reset between them: the second one makes the compiler treat it as a symbol
        x = torch.randn(3, 9)
        compiled = torch.compile(MaxSeparation(10, radius), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), separate(x, radius))
        torch.testing.assert_close(
            torch.compile(separate, fullgraph=True, backend="eager")(x, radius), separate(x, radius)
        )


def test_a_batch_of_gradients_of_any_size():
    """Large ones go block by block where there is one of them."""
    x = torch.randn(30, 4_999, requires_grad=True)
    outputs, g = separate(x, impl="scan"), torch.randn(3, 30, 5_000)
    (together,) = torch.autograd.grad(outputs, x, g, is_grads_batched=True, retain_graph=True)
    for batched, alone in zip(together, g, strict=True):
        torch.testing.assert_close(batched, torch.autograd.grad(outputs, x, alone, retain_graph=True)[0])
