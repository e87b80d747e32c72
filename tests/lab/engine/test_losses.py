import pytest
import torch
import torch.nn.functional as F

from maxsep.lab.engine import losses
from maxsep.lab.spec import RunSpec, options


def test_cross_entropy_smooths_on_demand():
    logits, target = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    plain = losses.build_loss(RunSpec(), [1, 1, 1])(logits, target)
    smooth = losses.build_loss(RunSpec(loss_options=options(label_smoothing=0.2)), [1, 1, 1])(logits, target)
    assert torch.equal(plain, F.cross_entropy(logits, target))
    assert torch.equal(smooth, F.cross_entropy(logits, target, label_smoothing=0.2))


def test_squared_cosine_looks_at_the_right_class_only():
    loss = losses.build_loss(RunSpec(loss="squared_cosine"), [1, 1])
    cosines = torch.tensor([[1.0, -1.0], [0.5, 0.5]])
    assert loss(cosines, torch.tensor([0, 1])).item() == pytest.approx((0 + 0.25) / 2)


def test_an_unknown_loss_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown loss 'hinge'. Known: cross_entropy, squared_cosine"):
        losses.build_loss(RunSpec(loss="hinge"), [1])


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_cosine"])
def test_unknown_options_are_refused(loss):
    with pytest.raises(ValueError, match=rf"loss '{loss}' does not take the options \['margin'\]"):
        losses.build_loss(RunSpec(loss=loss, loss_options=options(margin=1)), [1])


def test_losses_can_be_added_once(monkeypatch):
    monkeypatch.setattr(losses, "_LOSSES", dict(losses._LOSSES))
    losses.register_loss("counted", lambda spec, counts: lambda logits, target: logits.sum() * counts[0])
    assert losses.build_loss(RunSpec(loss="counted"), [3])(torch.ones(1, 2), torch.zeros(1)).item() == 6
    with pytest.raises(ValueError, match="the loss 'counted' exists already"):
        losses.register_loss("counted", lambda spec, counts: F.cross_entropy)
