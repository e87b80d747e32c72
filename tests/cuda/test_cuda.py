"""What only a GPU can show: run these where there is one (`pytest tests/cuda`)."""

import pytest
import torch
from contract import check_head
from maxsep.ops.scan import separate_scan
from torch import nn
from torch.nn import functional as F

from maxsep import MaxSeparationHead, heads, separate, simplex
from maxsep.ops import cache

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _fresh():
    cache.clear_cache()
    torch.compiler.reset()


@pytest.mark.parametrize("num_classes", [2, 10, 1_000, 100_000, 1_000_000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_values_and_gradients(num_classes, dtype):
    x = torch.randn(4, num_classes - 1, device="cuda").to(dtype).requires_grad_()
    g = torch.randn(4, num_classes, device="cuda").to(dtype)
    result = separate(x, 0.5)
    (gradient,) = torch.autograd.grad(result, x, g)
    reference_x = x.detach().cpu().double().requires_grad_()
    reference = separate_scan(reference_x, 0.5)
    (reference_gradient,) = torch.autograd.grad(reference, reference_x, g.cpu().double())
    slack = max(1e-6 if num_classes <= 100_000 else 1e-5, torch.finfo(dtype).eps)
    for ours, theirs in ((result, reference), (gradient, reference_gradient)):
        assert ((ours.cpu().double() - theirs).abs().max() / theirs.abs().max()).item() <= slack


def test_tensorfloat_products_do_not_touch_the_geometry():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        vectors = separate(torch.eye(99, device="cuda"))
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(vectors.cpu(), simplex(100), atol=1e-6, rtol=0)


def test_autocast_keeps_float32_and_the_geometry():
    with torch.autocast("cuda", dtype=torch.bfloat16):
        vectors = separate(torch.eye(999, device="cuda", dtype=torch.bfloat16))
        assert MaxSeparationHead(16, 5).cuda()(torch.randn(3, 16, device="cuda")).dtype == torch.float32
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.cpu(), simplex(1000), atol=1e-6, rtol=0)


@pytest.mark.parametrize("num_classes", [10, 1_000])
def test_graph_capture_neither_fills_the_cache_nor_goes_stale(num_classes):
    x = torch.randn(8, num_classes - 1, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        separate(x, 0.5)  # libraries load here, not in the capture
    torch.cuda.synchronize()
    cache.clear_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = separate(x, 0.5)
    assert not cache._entries
    for _ in range(3):
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result, separate(x, 0.5, impl="scan"), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", heads.names())
def test_every_head_meets_the_contract_on_the_gpu(name):
    options = {"iterations": 50} if name == "hpn" else {}
    check_head(heads.build(name, 12, 5, **options).cuda(), compile=True)


def test_moving_between_devices():
    head = MaxSeparationHead(16, 300, radius=0.1)
    x = torch.randn(5, 16)
    expected = head(x)
    torch.testing.assert_close(head.cuda()(x.cuda()).cpu(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(head.cpu()(x), expected)


def test_a_short_training_compiled_and_captured_follows_the_eager_one():
    def losses(fast):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), MaxSeparationHead(64, 300, radius=0.5)).cuda()
        step = torch.compile(model, fullgraph=True) if fast else model
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(256, 32, device="cuda"), torch.randint(300, (256,), device="cuda")
        found = []
        for _ in range(30):
            optimiser.zero_grad()
            loss = F.cross_entropy(step(x), y)
            loss.backward()
            optimiser.step()
            found.append(loss.item())
        return torch.tensor(found)

    torch.testing.assert_close(losses(True), losses(False), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("data_parallel", [False, True])
def test_class_parallel_head_on_one_rank(tmp_path, data_parallel):
    whole = MaxSeparationHead(16, 1_000, 0.5).double()
    x, target = torch.randn(8, 16), torch.arange(8) * 100
    expected = F.cross_entropy(whole(x.double()), target, label_smoothing=0.1)
    (expected_rows,) = torch.autograd.grad(F.cross_entropy(whole(x.double()), target), whole.weight)
    place = f"file://{tmp_path}/ranks"
    torch.distributed.init_process_group("nccl", init_method=place, rank=0, world_size=1)
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
