"""The kernels of a product with its softmax, as a GPU compiles them: both modules agree with plain torch."""

import pytest
import torch

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(params=["tile_kernels", "hopper_kernels"])
def kernels(request):
    """A module of kernels that this GPU can run."""
    pytest.importorskip("triton", reason="no Triton for this platform")
    from maxsep.ops.linear_cross_entropy import hopper_kernels, over_classes, tile_kernels

    device = torch.device("cuda", torch.cuda.current_device())
    if not over_classes.has_copy_engine(device):
        pytest.skip("a GPU without a copy engine")
    is_hopper = torch.cuda.get_device_capability(device)[0] == 9
    if request.param == "hopper_kernels" and not (is_hopper and hopper_kernels.is_known_triton()):
        pytest.skip("another GPU or Triton than the kernels of Hopper are for")
    return hopper_kernels if request.param == "hopper_kernels" else tile_kernels


def off(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm()).item()


CASES = [
    (torch.bfloat16, 64, 1_001, 129),
    (torch.bfloat16, 192, 5_003, 300),
    (torch.bfloat16, 512, 20_000, 700),
    (torch.float16, 512, 130, 3),
]


@pytest.mark.parametrize(("dtype", "width", "num_classes", "batch"), CASES)
@pytest.mark.parametrize("has_offset", [False, True])
def test_values_and_gradients(kernels, dtype, width, num_classes, batch, has_offset):
    torch.manual_seed(0)
    x = torch.randn(batch, width, device="cuda").to(dtype)
    weight = (torch.randn(num_classes, width, device="cuda") / width**0.5).to(dtype)
    offset = torch.randn(num_classes, device="cuda") if has_offset else None
    if has_offset:
        offset[:128] = -torch.inf  # a whole tile
    target = torch.randint(128, num_classes, (batch,), device="cuda")
    target[0], target[1], target[2] = num_classes, -100, num_classes - 1
    logits = x.double() @ weight.double().T + (0 if offset is None else offset.double())
    lse, picked = kernels.logsumexp(x, weight, offset, target)
    assert off(lse, logits.logsumexp(1)) <= 1e-5
    assert picked[:2].isnan().all()
    torch.testing.assert_close(picked[2:].double(), logits[2:].gather(1, target[2:, None])[:, 0], atol=1e-3, rtol=1e-3)
    grad_lse, grad_target = torch.rand(batch, device="cuda"), torch.randn(batch, device="cuda")
    start = num_classes // 16 * 8  # the second of two chunks, in a buffer with longer rows
    written = -(-(num_classes - start) // 8) * 8  # the copy engine moves 16 bytes
    buffer = torch.full((batch, written + 8), 7.0, device="cuda", dtype=dtype)
    out = buffer[:, : num_classes - start]
    kernels.gradient(x, weight, offset, target, (lse, grad_lse, grad_target))(out, start)
    expected = (logits - logits.logsumexp(1, keepdim=True)).exp() * grad_lse[:, None]
    expected[range(2, batch), target[2:]] += grad_target[2:]
    assert off(out, expected[:, start:]) <= 2 * torch.finfo(dtype).eps
    assert (buffer[:, written:] == 7).all()


def test_the_same_bits_every_time(kernels):
    torch.manual_seed(0)
    x, weight = (torch.randn(size, 64, device="cuda").bfloat16() for size in (129, 1_001))
    target = torch.randint(1_001, (129,), device="cuda")
    first, second = (torch.stack(kernels.logsumexp(x, weight, None, target)) for _ in range(2))
    assert torch.equal(first, second)
