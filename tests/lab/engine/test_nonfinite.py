import pickle

import pytest
import torch
from torch import nn

from maxsep.lab.engine.step import NonFiniteError, Where, check_gradients, check_loss, check_losses
from maxsep.lab.spec import RunSpec

LATER = Where(2, 7, 0.1)


def test_finite_values_pass():
    layer = nn.Linear(2, 2)
    layer.weight.grad = torch.full((2, 2), 3e38)  # its sum overflows, its values do not
    check_loss(RunSpec(), LATER, torch.tensor(1.0), torch.ones(2, 2), torch.arange(2))
    check_gradients(RunSpec(), LATER, layer)
    check_losses(RunSpec(), torch.ones(3), epoch=0, rate=0.1)


def test_the_loss_is_reported_with_place_images_and_cause():
    logits = torch.tensor([[0.0, 1.0], [float("nan"), 0.0], [float("inf"), 0.0]])
    with pytest.raises(NonFiniteError) as caught:
        check_loss(RunSpec(), LATER, torch.tensor(float("nan")), logits, torch.tensor([40, 41, 42]))
    assert (caught.value.epoch, caught.value.step) == (2, 7)
    message = str(caught.value)
    assert "the training loss became nan at epoch 3/20, step 8" in message
    assert "2 of 3 images (training images 41, 42)" in message
    assert "learning rate 0.1. Lower it" in message
    assert "weights were not changed" in message


def test_finite_logits_are_said_to_be():
    with pytest.raises(NonFiniteError, match=r"became inf .* All logits are finite"):
        check_loss(RunSpec(), LATER, torch.tensor(float("inf")), torch.ones(1, 2), torch.arange(1))


def test_many_bad_images_are_shortened():
    with pytest.raises(NonFiniteError, match=r"9 of 9 images \(training images 0, 1, 2, 3, 4, ...\)"):
        check_loss(RunSpec(), LATER, torch.tensor(float("nan")), torch.full((9, 2), torch.nan), torch.arange(9))


def test_the_first_bad_gradient_is_named():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    network[1].weight.grad[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"the gradient of 1\.weight is not finite at epoch 3/20, step 8"):
        check_gradients(RunSpec(), LATER, network)


@pytest.mark.parametrize(
    ("spec", "where", "cause"),
    [
        (RunSpec(), Where(0, 0, 0.1), r"first step.*normalisation='train'"),
        (RunSpec(precision="16-mixed"), LATER, r"Half precision \(16-mixed\) overflows.*bf16-mixed"),
        (RunSpec(radius=8.0), LATER, r"radius 8 with the learning rate 0.1.*Lower either"),
    ],
)
def test_the_likely_cause_depends_on_the_run(spec, where, cause):
    with pytest.raises(NonFiniteError, match=cause):
        check_loss(spec, where, torch.tensor(float("nan")), torch.ones(1, 1), torch.arange(1))


def test_an_epoch_of_losses_names_the_first_bad_step():
    losses = torch.tensor([1.0, 2.0, float("inf"), float("nan")])
    with pytest.raises(NonFiniteError, match=r"became inf at epoch 6/20, step 3. Nothing was saved since"):
        check_losses(RunSpec(), losses, epoch=5, rate=0.1)


def test_the_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(NonFiniteError("bad", 3, 4)))
    assert (str(error), error.epoch, error.step) == ("bad", 3, 4)
