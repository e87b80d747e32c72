"""The kernel is the same map as the matrix: here in Triton's interpreter, on a GPU in tests/cuda."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from maxsep.ops.dispatch import _choose
from maxsep.ops.row_plan import Tile
from maxsep.ops.scan import separate_adjoint, separate_scan
from maxsep.ops.triton_scan import adjoint_op, separate_op, separate_rows
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

from maxsep import MaxSeparation, separate, simplex
from maxsep.ops import row_plan, triton_scan

pytest.importorskip("triton", reason="no Triton for this platform")
pytestmark = [
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="tests/cuda runs these compiled"),
]


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 16 classes: short rows then have full tiles, a last one, and something to share."""
    monkeypatch.setattr(triton_scan, "choose_tile", lambda rows, classes, size, columns: Tile(2, 16, 1))
    triton_scan.launch_plan.cache_clear()
    yield
    triton_scan.launch_plan.cache_clear()


def error(actual, reference):
    return ((actual.double() - reference).abs().max() / reference.abs().max()).item()


def check(x, radius=0.5):
    """Forward and adjoint against float64; the adjoint gets a gradient laid out like the result."""
    result = separate(x, radius, impl="triton")
    assert result.shape == (*x.shape[:-1], x.shape[-1] + 1)
    assert error(result, separate_scan(x.double(), radius)) <= 1e-6
    g = torch.randn_like(result)
    gradient = adjoint_op(g, radius, x.dtype)
    assert gradient.shape == x.shape
    off = (gradient.double() - separate_adjoint(g.double(), radius)).abs().max() / g.abs().max()
    assert off.item() <= 1e-6 * radius
    return result, gradient


@given(st.lists(st.integers(1, 3), max_size=2).map(tuple), st.integers(2, 100), st.sampled_from([1.0, 0.1, 7.5]))
@settings(max_examples=25)
def test_equals_the_matrix(leading, num_classes, radius):
    torch.manual_seed(num_classes)
    x = torch.randn(*leading, num_classes - 1)
    reference = radius * x.double() @ simplex(num_classes, dtype=torch.float64)
    assert error(separate(x, radius, impl="triton"), reference) <= 1e-6
    check(x, radius)


@pytest.mark.parametrize("num_classes", [2, 15, 16, 17, 32, 33, 34, 100])
@pytest.mark.parametrize("programs", [1, 8])
def test_tiles_and_shared_rows(small_tiles, monkeypatch, num_classes, programs):
    monkeypatch.setattr(row_plan, "PROGRAMS", programs)
    check(torch.randn(3, num_classes - 1))


def test_a_long_row_is_shared_among_programs():
    check(torch.randn(1, 40_000))


@pytest.mark.parametrize("num_classes", [2_000, 20_001])
def test_accuracy_on_hard_rows(num_classes):
    """The sum of later gradients must not cancel where few classes are left."""
    x, g = torch.ones(1, num_classes - 1), torch.ones(1, num_classes)
    assert error(separate(x, impl="triton"), separate_scan(x.double(), 1.0)) <= 1e-6
    assert adjoint_op(g, 1.0, torch.float32).abs().max() <= 1e-6
    check(1e4 * (1 - 2 * (torch.arange(num_classes - 1) % 2)).float()[None])


def test_layouts(laid_out):
    check(laid_out)


def test_padding_that_is_not_a_number_or_not_there():
    buffer = torch.full((4, 16), math.nan)
    buffer[:, :15] = torch.randn(4, 15)
    check(buffer[:, :15])
    check(torch.randn(4 * 16 - 1).as_strided((4, 15), (16, 1)))  # the storage ends with the last class


def test_plans_are_made_once_and_follow_the_memory():
    triton_scan.launch_plan.cache_clear()
    bare, padded = torch.randn(4 * 16 - 1).as_strided((4, 15), (16, 1)), torch.randn(4, 16)[:, :15]
    for x in (bare, padded, padded, bare.clone(), bare.clone()):
        check(x)
    told = triton_scan.launch_plan.cache_info()
    assert (told.misses, told.hits) == (4, 6)  # three ways to lie in memory, of which all gradients share one


def test_transposed_stays_transposed_and_gradients_have_aligned_rows():
    result, gradient = check(torch.randn(40, 33).T)
    assert result.T.is_contiguous()
    assert gradient.T.is_contiguous()
    result, gradient = check(torch.randn(3, 9))
    assert result.is_contiguous()
    assert gradient.stride() == (12, 1)


def test_a_transposed_result_can_be_changed_in_place():
    x = torch.randn(5, 4).T.detach().requires_grad_()
    result = separate_rows(x, 0.5, torch.float32, 0)
    result += 1
    (gradient,) = torch.autograd.grad(result.square().sum(), x)
    torch.testing.assert_close(gradient, separate_adjoint(2 * result.detach(), 0.5))


@pytest.mark.parametrize("programs", [1, 8])
def test_padding_is_not_read_and_has_no_gradient(small_tiles, monkeypatch, programs, padding_keeps_its_promise):
    monkeypatch.setattr(row_plan, "PROGRAMS", programs)
    padding_keeps_its_promise(separate_op, adjoint_op)


def test_tiles():
    assert triton_scan.choose_tile(1024, 100_000, 2, False) == Tile(1, 1024, 4, 3)
    assert triton_scan.choose_tile(1024, 4_096, 2, False) == Tile(1, 1024, 4)
    assert triton_scan.choose_tile(1024, 100_000, 4, False) == Tile(1, 1024, 4)
    assert triton_scan.choose_tile(3, 10, 4, False) == Tile(16, 16, 4)
    assert triton_scan.choose_tile(512, 1_000, 4, True) == Tile(32, 32, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype):
    x = (10 + torch.randn(2, 9_000)).to(dtype)  # long enough for loads ahead
    reference = separate_scan(x.double(), 1.0)
    assert error(separate_op(x, 1.0, torch.float32), reference) <= 1e-6
    result = separate(x, impl="triton")
    assert result.dtype == dtype
    assert error(result, reference) <= torch.finfo(dtype).eps  # the interpreter cuts off where a GPU rounds
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert error(separate(x, impl="triton"), reference) <= 1e-6


def test_gradients_of_every_order(gradients_are_those_of_the_matrix):
    gradients_are_those_of_the_matrix("recursive")


def test_many_gradients_at_once():
    x, g = torch.randn(3, 9, requires_grad=True), torch.randn(4, 3, 10)
    (gradients,) = torch.autograd.grad(separate(x, impl="triton"), x, g, is_grads_batched=True)
    torch.testing.assert_close(gradients, g @ simplex(10).T)


def test_registered_as_torch_wants_it():
    torch.library.opcheck(separate_op, (torch.randn(3, 9, requires_grad=True), 0.5, torch.float32))
    torch.library.opcheck(separate_op, (torch.randn(9, 3).T, 0.5, torch.float32))
    torch.library.opcheck(adjoint_op, (torch.randn(2, 3, 10, requires_grad=True), 0.5, torch.float32))
    torch.library.opcheck(adjoint_op, (torch.randn(3, 10).bfloat16(), 0.5, torch.bfloat16))
    torch.library.opcheck(separate_op, (torch.randn(3, 16, requires_grad=True), 0.5, torch.float32, 7))
    torch.library.opcheck(adjoint_op, (torch.randn(3, 10, requires_grad=True), 0.5, torch.float32, 7))


@pytest.mark.parametrize(("backend", "batches"), [("inductor", [3]), ("aot_eager", [3, 5])])
def test_compiles_without_graph_breaks(backend, batches):
    def shifted(x, radius):
        return separate(2 * x, radius, impl="triton") + 1

    compiled = torch.compile(shifted, fullgraph=True, backend=backend)
    for batch in batches:
        x = torch.randn(batch, 30, requires_grad=True)
        result = compiled(x, 0.5)
        torch.testing.assert_close(result, x @ simplex(31) + 1)
        g = torch.randn_like(result)
        torch.testing.assert_close(torch.autograd.grad(result, x, g)[0], g @ simplex(31).T)


def test_the_same_bits_every_time():
    x = torch.randn(5, 3_000)
    with_checks = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(separate(x, impl="triton"), separate(x, impl="triton"))
    finally:
        torch.use_deterministic_algorithms(with_checks)


def test_no_rows():
    x = torch.randn(0, 9, requires_grad=True)
    result = separate(x, impl="triton")
    assert result.shape == (0, 10)
    assert torch.autograd.grad(result.sum(), x)[0].shape == (0, 9)


def fake_gpu(*shape, dtype=torch.float32):
    """A tensor that says it is on a GPU: enough to see what would be chosen there."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


def test_auto_takes_the_kernel_on_a_gpu_only(monkeypatch):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert _choose(fake_gpu(4, 9, dtype=dtype), "auto") == "triton"
    assert _choose(fake_gpu(4, 9, dtype=torch.float64), "auto") == "scan"
    assert _choose(fake_gpu(1, 2**30), "auto") == "scan"  # classes are counted in 32 bits
    assert _choose(torch.empty(4, 999), "auto") == "scan"
    seen = []
    torch.func.vmap(lambda x: seen.append(_choose(x, "auto")) or x)(fake_gpu(4, 9))
    with forward_ad.dual_level():
        seen.append(_choose(fake_gpu(4, 9), "auto"))
    monkeypatch.setattr(triton_scan, "IS_INSTALLED", False)
    assert [*seen, _choose(fake_gpu(4, 9), "auto")] == ["scan"] * 3


@pytest.fixture
def gpu_of(monkeypatch):
    """Pretend a GPU of some compute capability."""

    def pretend(*capability):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        triton_scan._capability.cache_clear()

    yield pretend
    triton_scan._capability.cache_clear()


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [((5, 2), "scan"), ((6, 1), "scan"), ((7, 0), "triton"), ((9, 0), "triton"), ((12, 0), "triton")],
)
def test_a_gpu_that_triton_does_not_know_takes_the_scan(gpu_of, capability, chosen):
    x = fake_gpu(4, 9)
    gpu_of(*capability)
    assert _choose(x, "auto") == chosen
    assert _choose(x, "auto", "householder") == chosen
    assert triton_scan.takes(x) == (chosen == "triton"), "the row loss and padding ask this"


def test_an_old_gpu_is_told_where_the_kernel_was_asked_for(gpu_of):
    x = fake_gpu(4, 9)
    gpu_of(6, 1)
    told = r"is for GPUs of compute capability 7\.0 or higher, x is on 'cuda:0', which is older\. Leave impl out"
    with pytest.raises(RuntimeError, match=told):
        separate(x, impl="triton")
    gpu_of(7, 0)
    triton_scan.check_triton(x)


@pytest.mark.parametrize("capability", [(6, 1), (8, 0)])
def test_the_age_of_a_gpu_is_a_constant_of_a_graph(monkeypatch, capability):
    monkeypatch.setattr(triton_scan, "_capability", lambda index: capability)

    @torch.compile(backend="eager", fullgraph=True)
    def asked(x):
        return x + triton_scan.is_supported(x.device.index)

    assert asked(torch.zeros(1)).item() == (capability == (8, 0))


def test_autocast_on_a_gpu_gives_float32(monkeypatch):
    monkeypatch.setattr("maxsep.ops.dispatch.is_autocasting", lambda device: device == "cuda")
    assert separate(fake_gpu(4, 9, dtype=torch.bfloat16)).dtype == torch.float32
    assert separate(fake_gpu(4, 9)).device.type == "cuda"


def test_transforms_and_float64_take_the_scan():
    x = torch.randn(4, 9, dtype=torch.float64)
    matrix = simplex(10, dtype=torch.float64)
    torch.testing.assert_close(separate(x, impl="triton"), x @ matrix)
    torch.testing.assert_close(torch.func.vmap(lambda row: separate(row, impl="triton"))(x), x @ matrix)
    torch.testing.assert_close(torch.func.jacfwd(lambda row: separate(row, impl="triton"))(x[0]), matrix.T)


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_compiled_transforms_take_the_scan(monkeypatch, transform):
    monkeypatch.setattr("maxsep.ops.dispatch.takes", lambda x: True)

    def differentiated(x):
        def loss(x):
            return separate(x, 0.5).square().sum()

        return torch.func.grad(loss)(x) if transform == "grad" else torch.func.jvp(loss, (x,), (x,))[1]

    x = torch.randn(3, 9)
    logits = separate_scan(x, 0.5)
    expected = separate_adjoint(2 * logits, 0.5) if transform == "grad" else 2 * logits.square().sum()
    torch.testing.assert_close(torch.compile(differentiated, backend="aot_eager")(x), expected)


def test_export_gives_plain_operations():
    with FakeTensorMode():
        program = torch.export.export(MaxSeparation(10), (torch.empty(4, 9, device="cuda"),), strict=False)
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any("cumsum" in target for target in targets)
    assert not any("maxsep" in target for target in targets)


def test_messages(monkeypatch):
    monkeypatch.setattr(triton_scan, "is_interpreting", lambda: False)
    with pytest.raises(RuntimeError, match=r"impl='triton' is for CUDA tensors, x is on 'cpu'\. Leave impl out"):
        separate(torch.randn(3, 2), impl="triton")
    monkeypatch.setattr(triton_scan, "IS_INSTALLED", False)
    with pytest.raises(RuntimeError, match=r"needs the package triton, which is not installed.*maxsep\[kernels\]"):
        separate(torch.randn(3, 2), impl="triton")


def test_imports_without_triton():
    code = (
        "import sys; sys.modules['triton'] = None; import maxsep, torch\n"
        "print(maxsep.separate(torch.ones(1, 2)).tolist())\n"
        "maxsep.separate(torch.ones(1, 2), impl='triton')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stdout.startswith("[[1.0, ")
    assert "impl='triton' needs the package triton" in told.stderr
