"""Every option of the fused loss against the unfused one in float64: the plain form, and the kernel interpreted."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from maxsep.ops import row_cross_entropy as module
from maxsep.ops import triton_scan
from maxsep.ops.row_cross_entropy import gradient_op, loss_op, row_cross_entropy
from maxsep.ops.scan import separate_scan

SIZES = [(7, 10), (3, 2), (5, 300)]
NUMPY = pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")  # of the interpreter, about nan and inf
OPTIONS = list(itertools.product(["mean", "sum", "none"], [0.0, 0.1], [False, True], [False, True]))


@pytest.fixture(params=["plain", "kernel"])
def form(request, monkeypatch):
    torch.manual_seed(0)
    torch.compiler.reset()
    if request.param == "kernel":
        pytest.importorskip("triton", reason="no Triton for this platform")
        if torch.cuda.is_available():
            pytest.skip("tests/cuda runs the kernel compiled, not interpreted")
        monkeypatch.setattr(triton_scan, "takes", lambda z: z.dtype != torch.float64)
        monkeypatch.setattr(module, "LONGEST_BLOCK", 64)
        module.launch_plan.cache_clear()
    yield request.param
    module.launch_plan.cache_clear()


def example(batch, num_classes, weighted, adjusted):
    z = torch.randn(batch, num_classes - 1, requires_grad=True)
    target = torch.randint(num_classes, (batch,))
    target[1] = -100
    weight = torch.rand(num_classes) + 0.1 if weighted else None
    return z, target, weight, torch.randn(num_classes) if adjusted else None


def reference(z, target, radius, offset=None, weight=None, **options):
    wide = z.detach().double().requires_grad_()
    logits = separate_scan(wide, radius)
    logits = logits if offset is None else logits + offset.double()
    return wide, F.cross_entropy(logits, target, None if weight is None else weight.double(), **options)


def off(ours, theirs):
    return ((ours.double() - theirs).abs().max() / theirs.abs().max()).item()


@pytest.mark.parametrize(("batch", "num_classes"), SIZES)
@pytest.mark.parametrize(("reduction", "smoothing", "weighted", "adjusted"), OPTIONS)
def test_every_option(form, batch, num_classes, reduction, smoothing, weighted, adjusted):
    z, target, weight, offset = example(batch, num_classes, weighted, adjusted)
    options = {"reduction": reduction, "label_smoothing": smoothing, "weight": weight}
    loss = row_cross_entropy(z, target, 0.7, logit_adjustment=offset, **options)
    wide, expected = reference(z, target, 0.7, offset, **options)
    assert loss.dtype == torch.float32
    assert off(loss, expected) <= 2e-6
    upstream = torch.randn_like(loss)
    (gradient,) = torch.autograd.grad(loss, z, upstream)
    (theirs,) = torch.autograd.grad(expected, wide, upstream.double())
    assert off(gradient, theirs) <= 2e-6


@NUMPY
def test_samples_that_do_not_count(form):
    z, target = torch.randn(4, 9, requires_grad=True), torch.tensor([3, 7, 7, 0])
    loss = row_cross_entropy(z, target, ignore_index=7)
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(loss, row_cross_entropy(z[[0, 3]], target[[0, 3]]))
    assert torch.equal(gradient[1:3], torch.zeros(2, 9))
    assert math.isnan(row_cross_entropy(z, torch.full((4,), 7), ignore_index=7).item())  # as F.cross_entropy has it


def test_half_precision_is_summed_in_float32(form):
    z, target = torch.randn(4, 299).bfloat16().requires_grad_(), torch.randint(300, (4,))
    loss = row_cross_entropy(z, target)
    wide, expected = reference(z, target, 1.0)
    assert loss.dtype == torch.float32
    assert off(loss, expected) <= 2e-6
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.dtype == torch.bfloat16
    assert off(gradient, torch.autograd.grad(expected, wide)[0]) <= torch.finfo(torch.bfloat16).eps


def test_classes_that_an_adjustment_rules_out(form):
    z, target = torch.randn(3, 199, requires_grad=True), torch.tensor([150, 199, 151])
    offset = torch.zeros(200)
    offset[:140] = -math.inf  # whole tiles of them
    wide, expected = reference(z, target, 1.0, offset)
    loss = row_cross_entropy(z, target, logit_adjustment=offset)
    assert off(loss, expected) <= 2e-6
    assert off(torch.autograd.grad(loss, z)[0], torch.autograd.grad(expected, wide)[0]) <= 2e-6


def test_large_logits_do_not_overflow(form):
    z, target = 1e4 * torch.randn(3, 99, requires_grad=True), torch.tensor([0, 50, 99])
    assert off(row_cross_entropy(z, target), reference(z, target, 1.0)[1]) <= 1e-6


@pytest.mark.parametrize("layout", ["padded", "transposed", "expanded"])
def test_layouts(form, layout):
    z = {"padded": torch.randn(5, 32)[:, :30], "transposed": torch.randn(30, 5).T, "expanded": torch.randn(5, 1)}[
        layout
    ]
    z, target = z.expand(5, 30).detach().requires_grad_(), torch.tensor([0, 30, 4, 5, 29])
    wide, expected = reference(z, target, 1.0)
    loss = row_cross_entropy(z, target)
    assert off(loss, expected) <= 2e-6
    assert off(torch.autograd.grad(loss, z)[0], torch.autograd.grad(expected, wide)[0]) <= 2e-6


@pytest.mark.parametrize("k", [1, 9, 63, 65, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_is_not_read_and_has_no_gradient(form, k, dtype):
    padding = -k % 8
    z, target = torch.full((4, k + padding), math.nan, dtype=dtype), torch.randint(k + 1, (4,))
    z[:, :k] = torch.randn(4, k)
    z, bare = z.requires_grad_(), z[:, :k].clone().requires_grad_()
    options = {"label_smoothing": 0.1, "weight": torch.rand(k + 1), "logit_adjustment": torch.randn(k + 1)}
    loss, expected = (
        row_cross_entropy(z, target, padding=padding, **options),
        row_cross_entropy(bare, target, **options),
    )
    assert torch.equal(loss, expected)
    (gradient,), (theirs,) = torch.autograd.grad(loss, z), torch.autograd.grad(expected, bare)
    assert gradient.shape == z.shape
    assert torch.equal(gradient[:, :k], theirs)
    assert torch.equal(gradient[:, k:], torch.zeros(4, padding, dtype=dtype))


def test_labels_and_class_numbers_in_any_layout(form):
    z, target = torch.randn(3, 9), torch.tensor([1, 5, 2, 5, 9, 5])[::2]
    weight, offset = torch.rand(20)[::2], torch.randn(1).expand(10)
    expected = row_cross_entropy(z, target.clone(), weight=weight.clone(), logit_adjustment=offset.clone())
    torch.testing.assert_close(row_cross_entropy(z, target, weight=weight, logit_adjustment=offset), expected)
    torch.testing.assert_close(expected, reference(z, target, 1.0, offset, weight)[1].float())


def test_no_samples_and_float64(form):
    assert row_cross_entropy(torch.randn(0, 9), torch.empty(0, dtype=torch.int64), reduction="sum").item() == 0
    z, target = torch.randn(3, 9, dtype=torch.float64), torch.tensor([1, 2, 9])
    torch.testing.assert_close(row_cross_entropy(z, target), reference(z, target, 1.0)[1])


def test_transforms(form):
    z, target = torch.randn(3, 9), torch.tensor([1, 2, 9])
    gradient = torch.func.grad(lambda z: row_cross_entropy(z, target))(z)
    wide, expected = reference(z, target, 1.0)
    assert off(gradient, torch.autograd.grad(expected, wide)[0]) <= 2e-6


def test_compiles_without_graph_breaks(form):
    z, target = torch.randn(3, 9, requires_grad=True), torch.tensor([1, 2, 9])
    compiled = torch.compile(lambda z: row_cross_entropy(2 * z, target, 0.5), fullgraph=True, backend="aot_eager")
    wide, expected = reference(z, target, 1.0)
    loss = compiled(z)
    assert off(loss, expected) <= 2e-6
    assert off(torch.autograd.grad(loss, z)[0], torch.autograd.grad(expected, wide)[0]) <= 2e-6


@pytest.mark.parametrize("form", ["kernel"], indirect=True)
def test_registered_as_torch_wants_it(form):
    z, target = torch.randn(3, 9, requires_grad=True), torch.tensor([1, 2, 9])
    arguments = (z, target, torch.rand(10), None, 0.5, 0.1, -100, 0, "mean")
    torch.library.opcheck(loss_op, arguments)
    with torch.no_grad():
        _, lse, scale = loss_op(*arguments)
        torch.library.opcheck(gradient_op, (scale, z, target, None, None, lse, scale, 0.5, 0.1, -100, 0))
        arguments = (torch.randn(3, 16), target, None, None, 0.5, 0.1, -100, 7, "sum")
        torch.library.opcheck(loss_op, arguments)
        loss, lse, scale = loss_op(*arguments)
        torch.library.opcheck(gradient_op, (loss, arguments[0], target, None, None, lse, scale, 0.5, 0.1, -100, 7))


@pytest.mark.parametrize("form", ["kernel"], indirect=True)
def test_no_second_derivatives(form):
    z = torch.randn(3, 9, requires_grad=True)
    (gradient,) = torch.autograd.grad(row_cross_entropy(z, torch.tensor([1, 2, 9])), z, create_graph=True)
    with pytest.raises(RuntimeError, match=r"first derivatives only.*Leave create_graph out"):
        gradient.sum().backward()


@NUMPY
@pytest.mark.parametrize("form", ["kernel"], indirect=True)
def test_a_class_that_does_not_exist_is_not_passed_over(form):
    z = torch.randn(3, 9, requires_grad=True)
    loss = row_cross_entropy(z, torch.tensor([1, 10, -1]), reduction="none")
    assert loss.isnan().tolist() == [False, True, True]
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert gradient.isnan().all(1).tolist() == [False, True, True]


@pytest.mark.parametrize("form", ["plain"], indirect=True)
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"z": torch.randn(2, 3, 9)}, r"z must be \(batch, C-1\), got shape \(2, 3, 9\). Flatten"),
        (
            {"target": torch.zeros(2, dtype=torch.int64)},
            r"target must be \(3,\), a class index for every row of z, got",
        ),
        ({"target": torch.zeros(3, dtype=torch.int64, device="meta")}, "must be on one device, got cpu and meta"),
        ({"reduction": "average"}, "reduction must be one of mean, sum, none, got 'average'"),
        ({"label_smoothing": 1.5}, r"label_smoothing must be a number from 0 to 1, got 1\.5"),
        ({"weight": torch.ones(9)}, r"weight must be \(10,\), one number for every class, got shape \(9,\)"),
        ({"logit_adjustment": torch.ones(11)}, r"logit_adjustment must be \(10,\)"),
        ({"radius": 0.0}, "radius must be positive"),
    ],
)
def test_messages(form, changed, told):
    arguments = {"z": torch.randn(3, 9), "target": torch.zeros(3, dtype=torch.int64)} | changed
    with pytest.raises(ValueError, match=told):
        row_cross_entropy(**arguments)
