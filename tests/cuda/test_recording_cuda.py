"""The second pass of the streamed loss as a recording: the same bits as its launches, and what it works on is what lies
there."""

import threading
import warnings

import pytest
import torch
from torch.nn import functional as F

from maxsep import MaxSeparationHead
from maxsep.losses import fused_cross_entropy
from maxsep.ops import recording
from maxsep.ops.fused import reduction
from maxsep.ops.recording import Recordings

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CLASSES, WIDTH, BATCH = 60_000, 64, 1024  # too many outputs to be held


@pytest.fixture
def recordings(monkeypatch):
    """Recordings of this test alone."""
    torch.cuda.synchronize()
    found = Recordings(recording.Graphs())
    monkeypatch.setattr(recording, "recordings_of", lambda device: found)
    return found


class Launching:
    """Never records."""

    def run(self, key, launches, stream):
        launches()


def problem(bias=False, basis="recursive", dtype=torch.bfloat16, batch=BATCH):
    torch.manual_seed(0)
    head = MaxSeparationHead(WIDTH, CLASSES, bias=bias, basis=basis, device="cuda", dtype=dtype)
    x = torch.randn(batch, WIDTH, device="cuda").to(dtype).requires_grad_()
    return head, x, torch.randint(CLASSES, (batch,), device="cuda")


def step(head, x, y, **options):
    """Return the loss and all gradients of a step, which leaves memory as it found it."""
    head.zero_grad()
    x.grad = None
    loss = fused_cross_entropy(head, x, y, **options)
    loss.backward()
    return loss.detach(), x.grad, *(parameter.grad for parameter in head.parameters())


def copies(tensors):
    return [tensor.cpu() for tensor in tensors]


def same(found, wanted):
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("basis", ["recursive", "householder"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_recording_gives_the_bits_of_its_launches(recordings, monkeypatch, basis, bias, smoothing):
    given = problem(bias, basis)
    options = {"label_smoothing": smoothing, "weight": torch.rand(CLASSES, device="cuda") + 0.5 if smoothing else None}
    with monkeypatch.context() as patch:
        patch.setattr(recording, "recordings_of", lambda device: Launching())
        wanted = copies(step(*given, **options))
    for _ in range(5):
        assert same(copies(step(*given, **options)), wanted)
    assert recordings._made


def test_it_works_on_what_lies_there_now(recordings, monkeypatch):
    head, x, y = problem()
    for _ in range(4):
        step(head, x, y)
    assert recordings._made
    made = dict(recordings._made)
    with torch.no_grad():
        head.weight.mul_(-2)
        x.copy_(torch.randn_like(x))
        y.copy_(y.flip(0))
    found = copies(step(head, x, y))
    assert recordings._made == made
    monkeypatch.setattr(recording, "recordings_of", lambda device: Launching())
    assert same(found, copies(step(head, x, y)))


def test_a_training_is_the_same_training(recordings, monkeypatch):
    losses = {}
    for kind in ("recorded", "launched"):
        chosen = recordings if kind == "recorded" else Launching()
        monkeypatch.setattr(recording, "recordings_of", lambda device, chosen=chosen: chosen)
        head, x, y = problem()
        optimiser = torch.optim.SGD([*head.parameters(), x], lr=1.0, momentum=0.9)
        values = []
        for _ in range(8):
            optimiser.zero_grad()
            loss = fused_cross_entropy(head, x, y)
            loss.backward()
            optimiser.step()
            values.append(loss.item())
        losses[kind] = values
    assert losses["recorded"] == losses["launched"]
    assert losses["recorded"][-1] < losses["recorded"][0]
    assert recordings._made


def test_gradients_that_are_kept_stay_as_they_are(recordings):
    head, x, y = problem()
    kept = []
    for turn in range(12):
        scale = turn + 1
        (g,) = torch.autograd.grad(scale * fused_cross_entropy(head, x, y), head.weight)
        kept.append((scale, g, g.clone()))
    for _, g, copy in kept:
        assert torch.equal(g, copy)
    torch.testing.assert_close(kept[2][1], 3 * kept[0][1], rtol=0.02, atol=1e-4)


def test_gradients_that_are_added_up(recordings):
    head, x, y = problem()
    for _ in range(3):
        head.zero_grad()
        x.grad = None
        for _ in range(4):
            fused_cross_entropy(head, x, y).backward()
    once = step(*problem())[2]
    torch.testing.assert_close(head.weight.grad, 4 * once, rtol=0.05, atol=1e-4)


def test_on_another_stream(recordings, monkeypatch):
    given = problem()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(4):
            found = copies(step(*given))
    torch.cuda.current_stream().wait_stream(aside)
    assert recordings._made
    monkeypatch.setattr(recording, "recordings_of", lambda device: Launching())
    assert same(found, copies(step(*given)))


def test_inside_a_graph_of_the_caller(recordings, monkeypatch):
    head, x, y = problem()
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step(head, x, y)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step(head, x, y)
    graph.replay()
    found = copies(found)
    monkeypatch.setattr(recording, "recordings_of", lambda device: Launching())
    assert same(found, copies(step(head, x, y)))


def test_two_threads(recordings, monkeypatch):
    results, problems = {}, [problem(), problem()]

    def train(name):
        for _ in range(6):
            results[name] = copies(step(*problems[name]))

    threads = [threading.Thread(target=train, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(recording, "recordings_of", lambda device: Launching())
    wanted = copies(step(*problem()))
    assert same(results[0], wanted)
    assert same(results[1], wanted)


def test_one_place_for_many_recordings(recordings, monkeypatch):
    """With the last graph of a pool its memory is gone."""
    monkeypatch.setattr(recording, "most", lambda: 1)
    monkeypatch.setattr(recording, "PATIENCE", 1)
    problems = [problem(), problem()]
    wanted = [copies(step(*given)) for given in problems]
    for _ in range(3):
        for given, right in zip(problems, wanted, strict=True):
            for _ in range(3):
                assert same(copies(step(*given)), right)
    assert len(recordings._made) == 1


def test_a_place_is_made_anew_when_its_recordings_are_gone(recordings):
    given = problem()
    wanted = copies(step(*given))
    for _ in range(2):
        for _ in range(3):
            assert same(copies(step(*given)), wanted)
        assert recordings._made
        torch.cuda.synchronize()
        recordings._made.clear()
        torch.cuda.empty_cache()


def test_what_recordings_keep_is_a_workspace_of_cublas_and_taken_at_the_first_run(recordings):
    given = problem()

    def allocated():
        given[0].zero_grad()
        given[1].grad = None
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before = allocated()
    step(*given)
    after = allocated()
    assert after - before <= 65 << 20  # for the stream that launches, and for the one that records
    for _ in range(3):
        step(*given)
    assert recordings._made
    assert allocated() - after <= 1 << 20


def test_a_recording_that_fails_is_a_warning(monkeypatch):
    class Failing(recording.Graphs):
        def record(self, launches, stream):
            raise RuntimeError("no memory for it")

    failing = Recordings(Failing())
    monkeypatch.setattr(recording, "recordings_of", lambda device: failing)
    given = problem()
    wanted = copies(step(*given))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = [copies(step(*given)) for _ in range(3)]
    assert all(same(one, wanted) for one in found)
    assert sum("could not be recorded" in str(one.message) for one in told) == 1


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.2}, {"weight": True}, {"weight": True, "label_smoothing": 1.0}]
)
def test_the_reduction_by_kernels(kind, options, monkeypatch):
    monkeypatch.setattr(reduction, "_values", None)  # torch's way
    torch.manual_seed(0)
    head = MaxSeparationHead(8, 4_000, device="cuda", basis="householder")
    x, y = torch.randn(5_000, 8, device="cuda", requires_grad=True), torch.randint(4_000, (5_000,), device="cuda")
    y[::3] = -100
    if "weight" in options:
        options = options | {"weight": torch.rand(4_000, device="cuda") + 0.1}
    found = fused_cross_entropy(head, x, y, reduction=kind, **options)
    wanted = F.cross_entropy(
        head(x).double(), y, reduction=kind, **{k: v.double() if k == "weight" else v for k, v in options.items()}
    )
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)
    ours, theirs = (torch.autograd.grad(loss, x)[0] for loss in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_labels_that_are_no_class_pull_nothing():
    head, x, y = problem()
    y[3], y[5] = CLASSES, -1
    loss = fused_cross_entropy(head, x, y)
    loss.backward()
    assert loss.isnan()
    assert not x.grad[[3, 5]].any()
    assert x.grad.isfinite().all()
    assert head.weight.grad.isfinite().all()
