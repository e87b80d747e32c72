"""The kernels as a GPU compiles them: values, gradients, layouts, and every way of running a torch program."""

import itertools

import pytest
import torch
from maxsep.ops.adjoint_pair import padded_empty
from maxsep.ops.householder import householder_adjoint, separate_householder
from maxsep.ops.linear import separate_linear
from maxsep.ops.padding import padded_layer, padded_linear, padded_op
from maxsep.ops.row_cross_entropy import row_cross_entropy
from maxsep.ops.scan import separate_adjoint, separate_scan
from maxsep.ops.triton_householder import householder_adjoint_op, householder_op
from maxsep.ops.triton_scan import adjoint_op, separate_op
from torch import nn
from torch.library import CustomOpDef
from torch.nn import functional as F

from maxsep import MaxSeparation, MaxSeparationHead, separate
from maxsep.losses import fused_cross_entropy
from maxsep.ops import eager, layer_node, linear

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def off(ours, theirs, scale=None):
    return ((ours.double() - theirs).abs().max() / (theirs if scale is None else scale).abs().max()).item()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_classes", [2, 3, 16, 17, 1_000, 1_001, 4_097, 100_000, 1_000_003])
@pytest.mark.parametrize("padded", [True, False])
def test_values_and_gradients(dtype, num_classes, padded):
    for rows in (1, 5, 600) if num_classes < 5_000 else (1, 3):
        like = torch.empty(0, device="cuda")
        x = padded_empty(like, (rows, num_classes - 1), dtype) if padded else like.new_empty(rows, num_classes - 1)
        x = x.normal_() if padded else x.normal_().to(dtype)
        g = torch.randn(rows, num_classes, device="cuda").to(dtype)
        limit = 1e-6 if num_classes <= 100_000 else 1e-5
        for values, gradient in ((x, g), (torch.ones_like(x), torch.ones_like(g))):
            assert off(separate_op(values, 0.5, torch.float32), separate_scan(values.double(), 0.5)) <= limit
            expected = separate_adjoint(gradient.double(), 0.5)
            assert off(adjoint_op(gradient, 0.5, torch.float32), expected, gradient) <= limit
        rounded = separate(x, 0.5)
        assert rounded.dtype == dtype
        assert off(rounded, separate_scan(x.double(), 0.5)) <= torch.finfo(dtype).eps / 2 * 1.001 + limit


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(9, 6, device="cuda").t(),
        lambda: torch.randn(999, 512, device="cuda").t(),
        lambda: torch.randn(6, 18, device="cuda")[:, ::2],
        lambda: torch.randn(1, 9, device="cuda").expand(6, 9),
        lambda: torch.randn(6, 1, device="cuda").expand(6, 9),
        lambda: torch.randn(6, 20, device="cuda")[:, 3:12],
        lambda: torch.randn(2, 9, 3, device="cuda").movedim(1, -1),
        lambda: torch.randn(4 * 1000 - 1, device="cuda").as_strided((4, 999), (1000, 1)),
    ],
    ids=["transposed", "weight", "strided", "expanded", "constant", "sliced", "moved", "bare"],
)
def test_layouts(make):
    x = make()
    result = separate(x, 0.5, impl="triton")
    assert off(result, separate_scan(x.double(), 0.5)) <= 1e-6
    g = torch.randn_like(result)
    assert off(adjoint_op(g, 0.5, x.dtype), separate_adjoint(g.double(), 0.5)) <= 1e-6
    result = separate(x, 0.5, basis="householder", impl="triton")
    assert off(result, separate_householder(x.double(), 0.5)) <= 1e-6
    assert off(householder_adjoint_op(g, 0.5, x.dtype), householder_adjoint(g.double(), 0.5)) <= 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_classes", [2, 3, 16, 17, 1_000, 1_001, 10_000, 32_768, 32_769, 100_000, 1_000_003])
def test_values_and_gradients_in_the_householder_basis(dtype, num_classes):
    limit = 1e-6 if num_classes <= 100_000 else 1e-5
    for rows, padded in itertools.product((1, 5, 600) if num_classes < 5_000 else (1, 3), (True, False)):
        like = torch.empty(0, device="cuda", dtype=dtype)
        shape = (rows, num_classes - 1)
        x = (padded_empty(like, shape, dtype) if padded else like.new_empty(shape)).normal_()
        g = torch.randn(rows, num_classes, device="cuda").to(dtype)
        for values, gradient in ((x, g), (torch.ones_like(x), torch.ones_like(g))):
            assert off(householder_op(values, 0.5, torch.float32), separate_householder(values.double(), 0.5)) <= limit
            expected = householder_adjoint(gradient.double(), 0.5)
            assert off(householder_adjoint_op(gradient, 0.5, torch.float32), expected, gradient) <= limit
        rounded = separate(x, 0.5, basis="householder")
        assert rounded.dtype == dtype
        assert off(rounded, separate_householder(x.double(), 0.5)) <= torch.finfo(dtype).eps / 2 * 1.001 + limit


@pytest.mark.parametrize("run", ["eager", "compiled"])
@pytest.mark.parametrize("samples", [2_000, 40])
def test_a_head_in_the_householder_basis(run, samples):
    head = MaxSeparationHead(64, 1_000, 0.5, basis="householder").cuda()
    x = torch.randn(samples, 64, device="cuda", requires_grad=True)
    result = (torch.compile(head, fullgraph=True) if run == "compiled" else head)(x)
    wide = [t.detach().double().requires_grad_() for t in (x, head.weight, head.bias)]
    expected, g = separate_householder(F.linear(*wide), 0.5), torch.randn(samples, 1_000, device="cuda")
    assert off(result, expected) <= 1e-5
    found = torch.autograd.grad(result, [x, head.weight, head.bias], g)
    for ours, theirs in zip(found, torch.autograd.grad(expected, wide, g.double()), strict=True):
        assert off(ours, theirs) <= 1e-5


def test_deterministic_algorithms_work_where_a_sum_of_floats_is_refused():
    x = torch.randn(4, 50_000, device="cuda", requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        results = [separate(x) for _ in range(3)]
        gradients = [torch.autograd.grad(result.square().sum(), x)[0] for result in results]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for found in (results, gradients) for a, b in itertools.pairwise(found))


def test_registered_as_torch_wants_it():
    x = torch.randn(3, 999, device="cuda", requires_grad=True)
    torch.library.opcheck(separate_op, (x, 0.5, torch.float32))
    torch.library.opcheck(adjoint_op, (torch.randn(3, 1000, device="cuda", requires_grad=True), 0.5, torch.float32))


def test_compiles_captures_and_exports():
    x = torch.randn(64, 32, device="cuda", requires_grad=True)
    head = MaxSeparationHead(32, 300, radius=0.5).cuda()
    expected = head(x)
    compiled = torch.compile(head, fullgraph=True)(x)
    torch.testing.assert_close(compiled, expected, atol=1e-5, rtol=1e-5)
    g = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad(y, [x, *head.parameters()], g) for y in (compiled, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    program = torch.export.export(head, (x.detach(),), dynamic_shapes={"x": {0: torch.export.Dim("batch")}})
    assert not any("maxsep" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x[:7]), expected[:7], atol=1e-5, rtol=1e-5)
    layer = torch.export.export(MaxSeparation(10), (torch.randn(3, 9, device="cuda"),))
    assert not any("maxsep" in str(node.target) for node in layer.graph.nodes)


def test_second_derivatives_and_transforms():
    x = torch.randn(3, 40, device="cuda", requires_grad=True)
    g = torch.randn(3, 41, device="cuda", requires_grad=True)
    (first,) = torch.autograd.grad(separate(x, 0.7), x, g, create_graph=True)
    (second,) = torch.autograd.grad(first, g, x)
    assert off(second, separate_scan(x.detach().double(), 0.7)) <= 1e-6
    batched = torch.func.vmap(separate)(x.detach())
    assert off(batched, separate_scan(x.detach().double(), 1.0)) <= 1e-6
    (many,) = torch.autograd.grad(separate(x), x, torch.stack([g, 2 * g]).detach(), is_grads_batched=True)
    torch.testing.assert_close(many[1], 2 * many[0])


@pytest.mark.parametrize("samples", [2_000, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_both_sides_of_the_head(samples, bias):
    x = torch.randn(samples, 64, device="cuda", requires_grad=True)
    weight = torch.randn(2_999, 64, device="cuda", requires_grad=True)
    b = torch.randn(2_999, device="cuda", requires_grad=True) if bias else None
    assert linear._weight_is_smaller(x, weight) == (samples > 64)
    inputs = [x, weight] + ([b] if bias else [])
    wide = [t.detach().double().requires_grad_() for t in inputs]
    result, expected = separate_linear(x, weight, b, 0.5), separate_scan(F.linear(*wide), 0.5)
    assert off(result, expected) <= 3e-6
    g = torch.randn_like(result)
    for a, c in zip(
        torch.autograd.grad(result, inputs, g), torch.autograd.grad(expected, wide, g.double()), strict=True
    ):
        assert off(a, c) <= 5e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_classes", [2, 10, 1_000, 9_001])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_row_cross_entropy(dtype, num_classes, reduction):
    for smoothing, weighted, adjusted in itertools.product([0.0, 0.1], [False, True], [False, True]):
        z = padded_empty(torch.empty(0, device="cuda"), (37, num_classes - 1), dtype).normal_().requires_grad_()
        target = torch.randint(num_classes, (37,), device="cuda")
        target[3] = -100
        weight = torch.rand(num_classes, device="cuda") + 0.1 if weighted else None
        offset = torch.randn(num_classes, device="cuda") if adjusted else None
        options = {"reduction": reduction, "label_smoothing": smoothing}
        loss = row_cross_entropy(z, target, 0.7, weight=weight, logit_adjustment=offset, **options)
        wide = z.detach().double().requires_grad_()
        logits = separate_scan(wide, 0.7) + (0 if offset is None else offset.double())
        expected = F.cross_entropy(logits, target, None if weight is None else weight.double(), **options)
        upstream = torch.randn_like(loss)
        (ours,) = torch.autograd.grad(loss, z, upstream)
        (theirs,) = torch.autograd.grad(expected, wide, upstream.double())
        assert off(loss, expected) <= 3e-6
        assert off(ours, theirs) <= (3e-6 if dtype == torch.float32 else torch.finfo(dtype).eps)


def captured(step):
    """Warm up, record and replay what a step returns, on the current stream, which may not be the default one.

    Leaves that were first used on another stream would have their gradients brought there, out of the recording.
    """
    stream = torch.cuda.current_stream()
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = step()
    graph.replay()
    return result


@pytest.fixture
def own_stream():
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
        torch.cuda.synchronize()


@pytest.mark.usefixtures("own_stream")
def test_row_cross_entropy_captured_and_compiled():
    x, target = torch.randn(64, 32, device="cuda", requires_grad=True), torch.randint(300, (64,), device="cuda")
    head = MaxSeparationHead(32, 300).cuda()

    def loss(x):
        return row_cross_entropy(padded_linear(x, head.weight, head.bias), target)

    expected = F.cross_entropy(head(x), target)
    torch.testing.assert_close(torch.compile(loss, fullgraph=True)(x), expected)
    (gradient,) = captured(lambda: torch.autograd.grad(loss(x), x))
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x)[0])


@pytest.fixture(params=["autocast", "bfloat16", "tf32"])
def precision(request):
    """What makes products run on tensor cores."""
    if request.param == "tf32":
        torch.backends.cuda.matmul.allow_tf32 = True
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = False


def fused_loss(head, x, target):
    return fused_cross_entropy(head, x, target)


def loss_of_logits(head, x, target):
    return F.cross_entropy(head(x), target)


@pytest.mark.usefixtures("own_stream")
@pytest.mark.parametrize("way", [fused_loss, loss_of_logits])
@pytest.mark.parametrize("run", ["eager", "captured", "compiled"])
@pytest.mark.parametrize("num_classes", [1_000, 10])
def test_outputs_padded_for_tensor_cores(precision, way, run, num_classes):
    """Products in 16 bits are off by a percent; those with zeros behind them no more than others."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    head = MaxSeparationHead(64, num_classes, radius=0.5).cuda().to(dtype)
    x = torch.randn(48, 64, device="cuda", dtype=dtype, requires_grad=True)
    target = torch.randint(num_classes, (48,), device="cuda")
    loss = torch.compile(way, fullgraph=True) if run == "compiled" else way

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "autocast", cache_enabled=False):
            width = padded_linear(x, head.weight, head.bias).shape[-1]
            value = loss(head, x, target)
        assert width == -(-num_classes // 8) * 8
        return value, *torch.autograd.grad(value, [x, head.weight, head.bias])

    found = captured(step) if run == "captured" else step()
    wide = [t.detach().double().requires_grad_() for t in (x, head.weight, head.bias)]
    expected = F.cross_entropy(separate_scan(F.linear(*wide), 0.5), target)
    for ours, theirs in zip(found, (expected, *torch.autograd.grad(expected, wide)), strict=True):
        assert off(ours, theirs) <= (3e-3 if precision == "tf32" else 3e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_padding_has_no_gradient(dtype):
    for k, rows in itertools.product((1, 15, 999, 4_097), (1, 37)):
        padding = -k % 8
        z = torch.full((rows, k + padding), torch.nan, device="cuda", dtype=dtype)
        z[:, :k] = torch.randn(rows, k, device="cuda")
        z.requires_grad_()
        target = torch.randint(k + 1, (rows,), device="cuda")
        for loss in (
            row_cross_entropy(z, target, padding=padding),
            separate_op(z, 0.5, dtype, padding).sum(),
            householder_op(z, 0.5, dtype, padding).sum(),
        ):
            (gradient,) = torch.autograd.grad(loss, z)
            assert gradient[:, :k].isfinite().all()
            assert torch.equal(gradient[:, k:], torch.zeros_like(gradient[:, k:]))


@pytest.mark.parametrize("dtype", [None, *DTYPES])
@pytest.mark.parametrize(("k", "width"), [(9, 4), (1, 1), (999, 2048), (1001, 33)])
def test_a_layer_is_padded_in_one_launch(dtype, k, width):
    weight = torch.randn(k, width, device="cuda", requires_grad=True)
    bias = torch.randn(k, device="cuda", requires_grad=True)
    for b in (bias, None, bias.detach().bfloat16()):
        results = padded_layer(weight, b, dtype)
        for values, result in zip((weight, b), results, strict=True):
            if values is not None:
                assert torch.equal(result[:k], values.to(dtype or values.dtype))
                assert not result[k:].any()
    unaligned = torch.randn(k * width + 1, device="cuda")[1:].view(k, width)
    assert torch.equal(padded_layer(unaligned, None, dtype)[0][:k], unaligned.to(dtype or unaligned.dtype))
    torch.library.opcheck(padded_op, (weight, bias, dtype))


@pytest.mark.parametrize("way", [fused_loss, loss_of_logits])
def test_eager_steps_call_no_operator_and_give_what_operators_give(monkeypatch, way):
    head = MaxSeparationHead(64, 1_000).cuda()
    x, target = torch.randn(48, 64, device="cuda", requires_grad=True), torch.randint(1_000, (48,), device="cuda")
    names, call, found = [], CustomOpDef.__call__, []
    monkeypatch.setattr(CustomOpDef, "__call__", lambda op, *given: names.append(op._name) or call(op, *given))
    for watched in (False, True):
        for module in (eager, layer_node):
            monkeypatch.setattr(module, "is_watched", lambda tensors, watched=watched: watched)
        with torch.autocast("cuda", torch.bfloat16):
            loss = way(head, x, target)
        found.append((loss, *torch.autograd.grad(loss, [x, *head.parameters()])))
        assert bool(names) == watched
    for short, by_operators in zip(*found, strict=True):
        assert off(short, by_operators.double()) <= 1e-2


def test_second_derivatives_of_a_padded_head():
    x = torch.randn(48, 64, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(999, 64, device="cuda").bfloat16().requires_grad_()
    wide = [t.detach().double().requires_grad_() for t in (x, weight)]
    found = []
    for inputs, result in (
        ((x, weight), separate_linear(x, weight, None, 0.5)),
        (wide, separate_scan(F.linear(*wide), 0.5)),
    ):
        first = torch.autograd.grad(result.float().square().mean(), inputs, create_graph=True)
        found.append((*first, *torch.autograd.grad(sum(g.float().square().sum() for g in first), inputs)))
    for ours, theirs in zip(*found, strict=True):
        assert off(ours, theirs) <= 5e-2


def test_autocast_trains():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), MaxSeparationHead(32, 100)).cuda()
    x, target = torch.randn(128, 16, device="cuda"), torch.randint(100, (128,), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(x)
    assert logits.dtype == torch.float32
    F.cross_entropy(logits, target).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
