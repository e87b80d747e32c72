"""Log-sum-exp and target logit of a layer equal those of its logits, in value and every gradient."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from maxsep.ops.linear_cross_entropy import (
    Factors,
    Layer,
    choose_algorithm,
    layer_logsumexp,
    over_classes,
    over_samples,
    weighted_sum_of_losses,
)

both = pytest.mark.parametrize("algorithm", ["classes", "samples"])


def layer_of(num_classes, batch, width, offset=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(num_classes * 100 + batch * 10 + width)

    def normal(*shape, dtype=dtype):
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    target = torch.randint(num_classes, (batch,), generator=generator)
    numbers = normal(num_classes, dtype=wide) if offset else None
    return Layer(normal(batch, width), normal(num_classes, width), numbers, target)


def leaves(layer):
    return [t for t in layer[:3] if t is not None and t.requires_grad]


def doubled(layer):
    return Layer(*(t if t is None else t.detach().double().requires_grad_() for t in layer[:3]), layer.target)


def dense(layer):
    """Log-sum-exp and target logit from all logits."""
    x, weight, offset, target = layer
    logits = x @ weight.T
    logits = logits if offset is None else logits + offset
    is_class = (target >= 0) & (target < len(weight))
    picked = logits.gather(1, torch.where(is_class, target, 0)[:, None])[:, 0]
    return logits.logsumexp(1), torch.where(is_class, picked, torch.nan)


def dense_sum(layer, factors, counts):
    lse, logit = dense(layer)
    value = (
        factors.grad_lse * lse
        + factors.grad_target * logit
        + (0 if factors.z_loss is None else factors.z_loss * lse**2)
    )
    return torch.where(counts, value, 0).sum()


def assert_all_close(ours, theirs, tolerance=1e-10, **options):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, atol=tolerance, rtol=tolerance, **options)


def small_chunks(patch, layer):
    """Chunks of 2 samples or 8 classes."""
    patch.setitem(over_samples.FEW_BYTES, "cpu", 2 * len(layer.weight) * 8)
    patch.setitem(over_classes.CHUNK_BYTES, "cpu", 1)
    patch.setattr(over_classes, "MULTIPLE", 8)


@given(
    algorithm=st.sampled_from(["classes", "samples"]),
    num_classes=st.integers(2, 40),
    batch=st.integers(1, 9),
    width=st.integers(1, 9),
    offset=st.booleans(),
    needs=st.sampled_from([needs for needs in itertools.product((True, False), repeat=3) if any(needs[:2])]),
    is_chunked=st.booleans(),
    bad_label=st.none() | st.sampled_from([-100, -1, 40, 1000]),
)
@settings(max_examples=150)
def test_values_and_gradients(algorithm, num_classes, batch, width, offset, needs, is_chunked, bad_label):
    layer = layer_of(num_classes, batch, width, offset)
    for tensor, needed in zip(layer[:3], needs, strict=True):
        if tensor is not None:
            tensor.requires_grad_(needed)
    if bad_label is not None:
        layer.target[0] = bad_label
    up = [torch.randn(batch, dtype=torch.float64) for _ in range(2)]
    counts = (layer.target >= 0) & (layer.target < num_classes)
    factors = Factors(*(counts * torch.randn(batch, dtype=torch.float64) for _ in range(3)))
    factors = factors if num_classes % 2 else factors._replace(z_loss=None)
    with pytest.MonkeyPatch.context() as patch:
        if is_chunked:
            small_chunks(patch, layer)
        pair, value = layer_logsumexp(layer, algorithm), weighted_sum_of_losses(layer, factors, counts, algorithm)
        ours = [*torch.autograd.grad(pair, leaves(layer), up), *torch.autograd.grad(value, leaves(layer))]
    exact_pair, exact = dense(layer), dense_sum(layer, factors, counts)
    assert_all_close([*pair, value], [*exact_pair, exact], equal_nan=True)
    assert_all_close(
        ours, [*torch.autograd.grad(exact_pair, leaves(layer), up), *torch.autograd.grad(exact, leaves(layer))]
    )


@both
def test_classes_that_the_offset_rules_out(algorithm, monkeypatch):
    layer = layer_of(30, 5, 4)
    layer.offset.data[:17] = -torch.inf  # all of the first chunks
    layer.target.copy_(torch.tensor([17, 20, 25, 29, 17]))
    small_chunks(monkeypatch, layer)
    pair, exact = layer_logsumexp(layer, algorithm), dense(layer)
    assert_all_close(pair, exact)
    up = [torch.randn(5, dtype=torch.float64) for _ in range(2)]
    assert_all_close(torch.autograd.grad(pair, leaves(layer), up), torch.autograd.grad(exact, leaves(layer), up))
    layer.offset.data.fill_(-torch.inf)
    lse, _ = layer_logsumexp(layer, algorithm)
    assert (lse == -torch.inf).all()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(lse.sum(), leaves(layer)))


@both
def test_a_retained_graph_gives_the_same_gradients_again(algorithm):
    layer, one = layer_of(40, 6, 4), torch.ones(6, dtype=torch.float64)
    value = weighted_sum_of_losses(layer, Factors(one, -one, None), one > 0, algorithm)
    first = torch.autograd.grad(value, leaves(layer), torch.tensor(2.0).double(), retain_graph=True)
    assert_all_close(torch.autograd.grad(value, leaves(layer), torch.tensor(2.0).double()), first, 0)


@both
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1e-2), (torch.float16, 1e-3)])
def test_half_precision_with_a_loss_scale(algorithm, is_chunked, dtype, tolerance, monkeypatch):
    """A mean over so many samples underflows in float16, unless it is scaled before it is rounded."""
    layer = layer_of(200, 24, 16, dtype=dtype)
    if is_chunked:
        small_chunks(monkeypatch, layer)
    factor = torch.full((24,), 1e-8)
    factors, counts, scale = Factors(factor, -factor, None), factor > 0, torch.tensor(2.0**16)
    value = weighted_sum_of_losses(layer, factors, counts, algorithm)
    exact_layer = doubled(layer)
    exact = dense_sum(exact_layer, Factors(factor.double(), -factor.double(), None), counts)
    torch.testing.assert_close(value.double(), exact, rtol=tolerance, atol=0)
    ours = torch.autograd.grad(value, leaves(layer), scale)
    for a, b in zip(ours, torch.autograd.grad(exact, leaves(exact_layer), scale.double()), strict=True):
        assert (a.double() - b).norm() <= 2 * tolerance * b.norm()
    assert [gradient.dtype for gradient in ours] == [dtype, dtype, torch.float32]


@pytest.mark.usefixtures("interpreted")
@both
@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("num_classes", [2, 300])
def test_kernels_in_the_interpreter(algorithm, offset, num_classes, monkeypatch):
    monkeypatch.setattr(over_samples, "BLOCK_V", 128)
    layer = layer_of(num_classes, 3, 72 if num_classes > 2 else 4, offset, torch.float32)
    layer.target[0] = num_classes
    if offset:
        layer.offset.data[: num_classes // 2] = -torch.inf  # the whole of a block
        layer.target[1:] = num_classes - 1
    exact_layer = doubled(layer)
    pair, exact = layer_logsumexp(layer, algorithm), dense(exact_layer)
    assert_all_close(pair, exact, 1e-4, equal_nan=True)
    up = [torch.randn(3) for _ in range(2)]
    exact_gradients = torch.autograd.grad(exact, leaves(exact_layer), [u.double() for u in up])
    assert_all_close(torch.autograd.grad(pair, leaves(layer), up), exact_gradients, 1e-4)
    counts = layer.target < num_classes
    factors = Factors(*(counts * torch.randn(3) for _ in range(3)))
    value = weighted_sum_of_losses(layer, factors, counts, algorithm)
    exact = dense_sum(exact_layer, Factors(*(f.double() for f in factors)), counts)
    torch.testing.assert_close(value.double(), exact, atol=1e-3, rtol=1e-4)  # squares of the log-sum-exp are large
    assert_all_close(torch.autograd.grad(value, leaves(layer)), torch.autograd.grad(exact, leaves(exact_layer)), 1e-4)


@pytest.mark.usefixtures("interpreted")
@both
def test_kernels_take_labels_offsets_and_gradients_however_they_lie(algorithm):
    layer = layer_of(40, 6, 8, dtype=torch.float32)
    offset, target = torch.randn(40, 2)[:, 0], torch.randint(40, (6, 2))[:, 0]
    layer = layer._replace(offset=offset, target=target)
    lse, logit = layer_logsumexp(layer, algorithm)
    exact_lse, exact_logit = dense(layer)
    assert_all_close([lse, logit], [exact_lse, exact_logit], 1e-4)
    up = torch.ones(()).expand(6)  # what a sum passes back
    ours = torch.autograd.grad([lse, logit], leaves(layer), [up, up])
    assert_all_close(ours, torch.autograd.grad([exact_lse, exact_logit], leaves(layer), [up, up]), 1e-4)


@pytest.mark.parametrize(
    ("batch", "features", "classes", "algorithm"),
    [(128, 256, 1_000, "logits"), (1024, 128, 50_000, "samples"), (1024, 128, 1_000_000, "classes"),
     (4, 128, 1_000_000, "logits"), (0, 128, 1_000, "logits")],
)  # fmt: skip
def test_choice_on_a_cpu(batch, features, classes, algorithm):
    weight = torch.empty(classes, 1).expand(classes, features)
    x = torch.empty(batch, features)
    assert choose_algorithm(x, weight) == algorithm
    assert choose_algorithm(x, weight, "classes") == ("classes" if batch else "logits")
    assert torch.func.vmap(lambda x: x * (choose_algorithm(x, weight, "classes") == "logits"))(
        torch.ones(1, 2, 3)
    ).all()


@pytest.mark.parametrize(
    ("batch", "features", "classes", "algorithm"),
    [(64, 512, 1_000, "samples"), (4096, 512, 100_000, "classes"), (2048, 4096, 128_256, "samples"),
     (8192, 1024, 128_000, "classes"), (8192, 2048, 32_000, "samples"), (4096, 511, 100_000, "samples")],
)  # fmt: skip
def test_choice_on_a_gpu(fake_gpu, monkeypatch, batch, features, classes, algorithm):
    monkeypatch.setattr(over_classes, "has_copy_engine", lambda device: True)
    x, weight = (fake_gpu(size, features, dtype=torch.bfloat16) for size in (batch, classes))
    assert choose_algorithm(x, weight) == algorithm
    assert choose_algorithm(x.float(), weight.float()) == "samples"
    monkeypatch.setattr(over_classes, "has_copy_engine", lambda device: False)
    assert choose_algorithm(x, weight) == "samples"


def test_a_frozen_layer_keeps_no_logits():
    """Features and offset take their gradients from the forward pass; the weight alone needs g in the backward pass."""
    layer, one, kept = layer_of(500, 40, 4), torch.ones(40, dtype=torch.float64), []
    layer.weight.requires_grad_(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        value = weighted_sum_of_losses(layer, Factors(one, -one, None), one > 0, "samples")
    assert max(kept) < 40 * 500
    ours = torch.autograd.grad(value, leaves(layer))
    assert_all_close(ours, torch.autograd.grad(dense_sum(layer, Factors(one, -one, None), one > 0), leaves(layer)))


@both
def test_a_gradient_lies_as_its_weight_does(algorithm, monkeypatch):
    """A folded weight is a transposed one, and its gradient goes back through P along rows."""
    layer, one = layer_of(40, 6, 4), torch.ones(6, dtype=torch.float64)
    layer = layer._replace(weight=layer.weight.detach().T.contiguous().T.requires_grad_())
    small_chunks(monkeypatch, layer)
    value = weighted_sum_of_losses(layer, Factors(one, -one, None), one > 0, algorithm)
    (gradient,) = torch.autograd.grad(value, layer.weight)
    assert gradient.stride() == layer.weight.stride()


@pytest.mark.usefixtures("fresh")
@both
def test_one_graph_serves_all_batch_sizes(algorithm):
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter, dynamic=True)
    def step(x, weight, target):
        layer, one = Layer(x, weight, None, target), torch.ones(len(x), dtype=torch.float64)
        lse, logit = layer_logsumexp(layer, algorithm)
        return (lse - logit).sum() + weighted_sum_of_losses(layer, Factors(one, -one, None), one > 0, algorithm)

    for batch in (5, 7, 16, 31):
        layer = layer_of(40, batch, 4, offset=False)
        lse, logit = dense(layer)
        exact = torch.autograd.grad(2 * (lse - logit).sum(), leaves(layer))
        assert_all_close(torch.autograd.grad(step(layer.x, layer.weight, layer.target), leaves(layer)), exact)
    assert counter.frame_count == 1


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_are_registered_as_torch_wants_them(algorithm, dtype):
    layer = Layer(*(t.detach() if isinstance(t, torch.Tensor) else t for t in layer_of(20, 6, 4, dtype=dtype)))
    one, ops = torch.ones(6), torch.ops.maxsep
    for x, weight in ((layer.x, layer.weight), (layer.x.T.contiguous().T, layer.weight.T.contiguous().T)):
        arguments = (x, weight, *layer[2:])
        torch.library.opcheck(ops.linear_logsumexp.default, (*arguments, algorithm))
        for needs in ([True, True, True], [False, True, False]):
            torch.library.opcheck(ops.linear_classes_backward.default, (*arguments, one, one, -one, needs))
            together = (*arguments, one, -one, one, False, needs)
            torch.library.opcheck(ops.linear_loss_and_gradients.default, together)
