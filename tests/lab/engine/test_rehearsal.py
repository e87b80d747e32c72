"""What would stop a run is met before it starts, in words that say what to change."""

import pytest
import torch

from maxsep.lab.spec import Execution, RunSpec

CPU = Execution(device="cpu")


def test_gives_the_data_of_the_run_and_leaves_everything_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    data = dry_run(RunSpec(imbalance=0.1), CPU)
    assert data.train.class_counts == [119, 94, 73, 56, 43, 33, 26, 20, 15, 12]
    assert torch.equal(torch.get_rng_state(), before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "error", "told"),
    [
        ({"network": "nope"}, ValueError, "unknown network 'nope'"),
        ({"network": "timm/nope"}, ValueError, "nope"),
        ({"precision": "16-mixed"}, ValueError, "'16-mixed' needs a CUDA device"),
        ({"dataset": "folder:nowhere"}, FileNotFoundError, "nowhere is not a folder"),
        ({"loss_options": (("tau", 1.0),)}, ValueError, r"loss 'cross_entropy' does not take the options \['tau'\]"),
        ({"network": "convnet"}, ValueError, "convnet needs images of at least 16 x 16 pixels, got 8 x 8"),
    ],
)
def test_what_would_stop_it(changes, error, told):
    with pytest.raises(error, match=told):
        dry_run(RunSpec(**changes), CPU)


def test_a_network_that_does_not_take_the_images(monkeypatch):
    """Networks of other libraries find out in their first layer."""

    def build(*_):
        return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 11))

    monkeypatch.setattr("maxsep.lab.engine.rehearsal.build_model", build)
    message = "the network 'mlp' does not take images of 8 x 8: .* Take another network, or another size of the images."
    with pytest.raises(ValueError, match=message):
        dry_run(RunSpec(), CPU)
