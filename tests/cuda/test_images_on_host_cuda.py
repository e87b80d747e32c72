"""Images that do not fit on the GPU: they stay on the host, and the run is the same."""

import pytest
import torch

from maxsep.lab import environment
from maxsep.lab.data import Dataset
from maxsep.lab.engine import train
from maxsep.lab.environment import fits
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_too_many_images_stay_on_the_host(monkeypatch):
    data, device = Dataset.parse("digits").read(), torch.device("cuda", 0)
    assert fits(data.bytes, device)
    monkeypatch.setattr(environment, "ROOM", 0.0)
    kept = data.to(device, images=fits(data.bytes, device))
    assert not kept.train.images.is_cuda
    assert kept.train.labels.is_cuda
    indices = torch.tensor([5, 1, 5])
    images, labels = kept.train.batch(indices)
    assert images.is_cuda
    assert torch.equal(images.cpu(), data.train.images[indices])
    assert torch.equal(labels.cpu(), data.train.labels[indices])
    assert all(batch.is_cuda for batch in kept.test.batches(100))


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_a_run_is_the_same_wherever_its_images_lie(tmp_path, monkeypatch, cuda_graph):
    spec = RunSpec(epochs=3, augmentation="crop_flip")
    execution = Execution(device="cuda", cuda_graph=cuda_graph)
    here = Run(train(spec, runs=tmp_path / "here", execution=execution, progress=False))
    monkeypatch.setattr(environment, "ROOM", 0.0)
    there = Run(train(spec, runs=tmp_path / "there", execution=execution, progress=False))
    assert there.metrics["train_loss"] == pytest.approx(here.metrics["train_loss"], rel=1e-4)
    assert there.metrics["top1"] == pytest.approx(here.metrics["top1"], abs=0.01)
