"""A training step in CUDA graphs: with a fake of torch.cuda everywhere, and on a GPU."""

from contextlib import contextmanager, nullcontext
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from maxsep.lab.data import augmentation
from maxsep.lab.data.autoaugment import RandAugment
from maxsep.lab.engine import train
from maxsep.lab.engine.step import WARM_UP, CapturedStep
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec


class FakeGraph:
    """A graph that, when replayed, repeats the step it was captured from."""

    capturing = None

    def __init__(self):
        self.generators = []
        self.recorded = []
        self.register_generator_state = self.generators.append

    def replay(self):
        for action in self.recorded:
            action()


class FakeStep:
    """A step whose result depends on the batch and the learning rate; captured work runs only in a replay."""

    def __init__(self):
        self.trained = []
        self.rate = torch.tensor(0.0)
        self.generators = (object(), object())
        self.optimiser = mock.Mock()

    def at(self, epoch, position, rate):
        self.rate.fill_(rate)

    def __call__(self, indices):
        loss = torch.zeros(())

        def work():
            self.trained.append(indices.tolist())
            loss.copy_(indices.sum() * self.rate)

        if FakeGraph.capturing is None:
            work()
        else:
            FakeGraph.capturing.recorded.append(work)
        return loss


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are captured with a fake of torch.cuda."""
    captured = []

    @contextmanager
    def capture(graph, stream):
        FakeGraph.capturing = graph
        yield
        FakeGraph.capturing = None

    fakes = {"Stream": mock.Mock, "current_stream": mock.Mock, "stream": nullcontext, "graph": capture}
    for name, fake in (fakes | {"CUDAGraph": lambda: captured.append(FakeGraph()) or captured[-1]}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return captured


def test_every_batch_is_trained_on_once_in_one_graph_for_each_size_after_its_warm_up(graphs):
    step = FakeStep()
    captured = CapturedStep(step)
    batches = [torch.arange(4) + 10 * number for number in range(WARM_UP)]
    for epoch in range(5):
        for position, batch in enumerate([*batches, torch.tensor([epoch, 100])]):
            rate = 1.0 + epoch + position
            captured.at(epoch, position, rate)
            assert captured(batch).item() == batch.sum().item() * rate
            assert step.trained[-1] == batch.tolist()
            assert len(graphs) == (epoch >= 1) + (epoch > WARM_UP or (epoch == WARM_UP and len(batch) == 2))
    assert len(step.trained) == 5 * (WARM_UP + 1)
    assert step.optimiser.zero_grad.call_args_list == [mock.call(set_to_none=True)] * 2, "gradients lie in the graph"
    assert all(graph.generators == list(step.generators) for graph in graphs)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class RandomStep:
    """A step whose result is nothing but random numbers: of dropout and of an augmentation."""

    def __init__(self):
        self.generator = torch.Generator("cuda").manual_seed(4)
        self.generators = (self.generator,)
        self.optimiser = mock.Mock()
        self.augment = augmentation("rand_augment_m6")
        source = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (64, 3, 32, 32), generator=source).to(torch.uint8).cuda()

    def __call__(self, indices):
        images = self.augment(self.images, self.generator).double()
        weights = torch.arange(images.numel(), device="cuda").view_as(images)
        return (F.dropout2d(F.dropout(images, 0.3), 0.2) * weights).sum()


@pytest.mark.cuda
@GPU
def test_dropout_and_augmentation_draw_anew_in_every_replay_and_go_on_after_a_resume():
    indices = torch.arange(3, device="cuda")

    def results(step, count):
        return [step(indices).item() for _ in range(count)]

    torch.manual_seed(3)
    expected = results(RandomStep(), 12)
    torch.manual_seed(3)
    captured = CapturedStep(RandomStep())
    assert results(captured, 8) == expected[:8]
    assert len(set(expected)) == 12
    # the states of a resume point, restored in a new process before anything is captured
    states = torch.cuda.get_rng_state(), captured.step.generator.get_state()
    torch.manual_seed(99)
    resumed = CapturedStep(RandomStep())
    torch.cuda.set_rng_state(states[0])
    resumed.step.generator.set_state(states[1])
    assert results(resumed, 4) == expected[8:]


@pytest.mark.cuda
@GPU
@pytest.mark.parametrize("level", [6, 18])
def test_rand_augment_gives_the_same_pictures_on_both_devices(level):
    augment, images = RandAugment(level), RandomStep().images
    draw = augment.draw(images, torch.Generator("cuda").manual_seed(1))
    there = augment.apply(images, draw).cpu()
    on_cpu = augment.draw(images.cpu(), torch.Generator())
    here = augment.apply(images.cpu(), on_cpu._replace(chosen=draw.chosen.cpu(), centre=draw.centre.cpu()))
    assert torch.equal(there, here)


@pytest.mark.cuda
@GPU
@pytest.mark.parametrize("fields", [{}, {"mixup": 1.0}, {"clip_norm": 0.5}])
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_training_follows_the_eager_one(tmp_path, compiled, fields):
    spec = RunSpec(epochs=6, batch_size=256, augmentation="crop_flip", evaluate_every=5, **fields)
    folders = []
    for graph in (False, True):
        execution = Execution(device="cuda", compile=compiled, channels_last=False, cuda_graph=graph)
        folders.append(train(spec, runs=tmp_path / str(graph), execution=execution, progress=False))
    eager, captured = (load_file(folder / "weights.safetensors") for folder in folders)
    for name in eager:
        torch.testing.assert_close(captured[name], eager[name], rtol=1e-2, atol=1e-3)
    losses = [[row["train_loss"] for row in Run(folder).history] for folder in folders]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
