"""What only a GPU can show of `separate` and the heads: run these where there is one (`pytest tests/cuda`)."""

import pytest
import torch
from contract import check_head
from torch.nn import functional as F

from maxsep import MaxSeparationHead, heads, separate, simplex
from maxsep.ops import adjoint, separate_linear
from maxsep.ops.separate_triton import separate_triton

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def off(ours, theirs, scale=None):
    """Return the largest difference over the largest number of the reference, or of `scale`."""
    return ((ours.double() - theirs).abs().max() / (theirs if scale is None else scale).abs().max()).item()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_classes", [2, 17, 1_001, 100_000, 1_000_003])
def test_values_and_gradients(num_classes, dtype):
    limit = 1e-6 if num_classes <= 100_000 else 1e-5
    for rows in (1, 5, 600) if num_classes < 5_000 else (1, 3):
        noise = torch.randn(rows, num_classes, device="cuda").to(dtype)
        for g in (noise, torch.ones_like(noise)):
            x = g[:, 1:].detach().requires_grad_()  # rows that are not aligned
            result = separate(x, 0.5)
            assert result.dtype == dtype
            slack = limit + torch.finfo(dtype).eps / 2 * 1.001
            assert off(result, separate(x.double().cpu(), 0.5).cuda()) <= slack
            (gradient,) = torch.autograd.grad(result, x, g)
            assert off(gradient, adjoint(g.double().cpu(), 0.5).cuda(), g) <= slack


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(9, 6, device="cuda").t(),
        lambda: torch.randn(40_000, 64, device="cuda").t(),
        lambda: torch.randn(6, 18, device="cuda")[:, ::2],
        lambda: torch.randn(1, 9, device="cuda").expand(6, 9),
        lambda: torch.randn(6, 1, device="cuda").expand(6, 9),
        lambda: torch.randn(2, 9, 3, device="cuda").movedim(1, -1),
        lambda: torch.randn(4 * 1000 - 1, device="cuda").as_strided((4, 999), (1000, 1)),
        lambda: torch.randn(0, 9, device="cuda"),
    ],
    ids=["transposed", "weight", "strided", "expanded", "constant", "moved", "bare", "no rows"],
)
def test_layouts(make):
    x = make()
    result = separate_triton(x, 0.5, torch.float32)
    gradient = separate_triton(result, 0.5, torch.float32, is_adjoint=True)
    torch.testing.assert_close(result, separate(x.double().cpu(), 0.5).cuda().float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradient, x / 4 * (x.shape[-1] + 1) / x.shape[-1], atol=1e-5, rtol=1e-4)


def test_second_derivatives_and_many_gradients():
    x, g = torch.randn(3, 20, device="cuda", requires_grad=True), torch.randn(4, 3, 21, device="cuda")
    matrix = simplex(21).cuda()
    result = separate(x)
    (gradients,) = torch.autograd.grad(result, x, g, is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(gradients, g @ matrix.T)
    (first,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], torch.full_like(x, 2 * 21 / 20))
    hessian = torch.func.hessian(lambda row: separate(row).square().sum())(x[0])
    torch.testing.assert_close(hessian, 2 * 21 / 20 * torch.eye(20, device="cuda"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_in_front(autocast):
    x, weight, bias = (torch.randn(*size, device="cuda", requires_grad=True) for size in ((48, 64), (999, 64), (999,)))
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        logits = separate_linear(x, weight, bias, 0.5)
    assert logits.dtype == torch.float32
    wide = [t.detach().double().cpu().requires_grad_() for t in (x, weight, bias)]
    expected = separate(F.linear(*wide), 0.5)
    tolerance = 3e-2 if autocast else 1e-5
    assert off(logits.cpu(), expected) <= tolerance
    g = torch.randn(48, 1000, device="cuda")
    ours = torch.autograd.grad(logits, (x, weight, bias), g)
    for a, b in zip(ours, torch.autograd.grad(expected, wide, g.double().cpu()), strict=True):
        assert off(a.cpu(), b) <= tolerance


def test_tensorfloat_products_and_autocast_do_not_touch_the_geometry():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            vectors = separate(torch.eye(999, device="cuda", dtype=torch.bfloat16))
        assert vectors.dtype == torch.float32
        torch.testing.assert_close(vectors.cpu(), simplex(1000), atol=1e-6, rtol=0)
        torch.testing.assert_close(separate(torch.eye(99, device="cuda")).cpu(), simplex(100), atol=1e-6, rtol=0)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_captured(dtype):
    x = torch.randn(8, 999, device="cuda", dtype=dtype)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        separate(x[:, :9], 0.5)  # libraries load here, not in the capture
        separate(x, 0.5)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = separate(x, 0.5)
    for _ in range(2):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result.cpu(), separate(x.cpu(), 0.5), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", heads.names())
def test_every_head_meets_the_contract_on_the_gpu(name):
    options = {"iterations": 50} if name == "hpn" else {}
    check_head(heads.build(name, 12, 5, **options).cuda(), compile=name == "maxsep")


def test_moving_between_devices():
    head = MaxSeparationHead(16, 300, radius=0.1, class_order=torch.randperm(300))
    x = torch.randn(5, 16)
    expected = head(x)
    torch.testing.assert_close(head.cuda()(x.cuda()).cpu(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(head.cpu()(x), expected)


@pytest.mark.parametrize("data_parallel", [False, True])
def test_class_parallel_head_on_one_rank(tmp_path, data_parallel):
    whole = MaxSeparationHead(16, 1_000, 0.5).double()
    x, target = torch.randn(8, 16), torch.arange(8) * 100
    expected = F.cross_entropy(whole(x.double()), target, label_smoothing=0.1)
    (expected_rows,) = torch.autograd.grad(F.cross_entropy(whole(x.double()), target), whole.weight)
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        head = heads.ClassParallelHead(16, 1_000, 0.5, data_parallel=data_parallel, device="cuda")
        head.load_state_dict(whole.state_dict())
        own = x.cuda().requires_grad_()
        loss = head.loss(own, target.cuda(), label_smoothing=0.1)
        torch.testing.assert_close(loss.cpu().double(), expected, atol=1e-5, rtol=1e-5)
        (gradient,) = torch.autograd.grad(head.loss(own, target.cuda()), head.weight)
        torch.testing.assert_close(gradient.full_tensor().cpu().double(), expected_rows, atol=1e-5, rtol=1e-4)
        assert torch.equal(head.predict(own).cpu(), whole(x.double()).argmax(1))
        assert head.loss(own, target.cuda() + 1_000).isnan()
    finally:
        torch.distributed.destroy_process_group()
