"""What happens when a loss or a gradient is no longer a number: the run stops and says why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from maxsep.lab.spec import RunSpec

_SHOWN = 5


@dataclass(frozen=True)
class Where:
    """A point of training: epoch and step inside it, counted from 0, and the learning rate there."""

    epoch: int
    step: int
    rate: float


class NonFiniteError(FloatingPointError):
    """A loss or a gradient became infinite or not a number.

    Attributes:
        epoch: Epoch of the first bad step, counted from 0.
        step: That step inside the epoch, counted from 0.
    """

    def __init__(self, message: str, epoch: int, step: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.step = step

    def __reduce__(self) -> tuple[type[NonFiniteError], tuple[str, int, int]]:
        return type(self), (str(self), self.epoch, self.step)


def check_loss(spec: RunSpec, where: Where, loss: Tensor, logits: Tensor, indices: Tensor) -> None:
    """Raise if a loss is not finite, before the weights move; waits for the device, so for the CPU only."""
    if torch.isfinite(loss):
        return
    bad = indices[~torch.isfinite(logits).all(dim=1)].tolist()
    shown = ", ".join(map(str, bad[:_SHOWN])) + (", ..." if len(bad) > _SHOWN else "")
    images = f"Logits are not finite for {len(bad)} of {len(indices)} images (training images {shown})."
    problem = f"{images if bad else 'All logits are finite.'} The weights were not changed."
    raise _error(spec, where, f"the training loss became {loss.item()}", problem)


def check_gradients(spec: RunSpec, where: Where, network: nn.Module) -> None:
    """Raise if a gradient is not finite, naming the first such parameter; waits for the device."""
    for name, parameter in network.named_parameters():
        grad = parameter.grad
        # a finite sum has finite terms; the dearer test settles sums that overflow
        if grad is None or bool(torch.isfinite(grad.sum())) or bool(torch.isfinite(grad).all()):
            continue
        raise _error(spec, where, f"the gradient of {name} is not finite", "The weights were not changed.")


def check_losses(spec: RunSpec, losses: Tensor, *, epoch: int, rate: float) -> None:
    """Raise if any loss of an epoch is not finite: the check for a device that must not be waited for."""
    finite = torch.isfinite(losses)
    if bool(finite.all()):
        return
    step = int((~finite).nonzero()[0, 0])
    where = Where(epoch, step, rate)
    raise _error(spec, where, f"the training loss became {losses[step].item()}", "Nothing was saved since.")


def _error(spec: RunSpec, where: Where, what: str, consequence: str) -> NonFiniteError:
    # people count from 1, as the progress does
    place = f"epoch {where.epoch + 1}/{spec.epochs}, step {where.step + 1}"
    message = f"{what} at {place}. {consequence} {_advice(spec, where)}"
    return NonFiniteError(message, where.epoch, where.step)


def _advice(spec: RunSpec, where: Where) -> str:
    if where.epoch == 0 and where.step == 0:
        return (
            "It is the first step, so the images, the normalisation or the initial weights are the likely cause. "
            "Check the data, or use normalisation='train'."
        )
    if spec.precision.startswith("16"):
        return (
            f"Half precision ({spec.precision}) overflows at 65504: the likely cause. "
            "Use precision='bf16-mixed' or '32-true'."
        )
    if spec.radius > 1:
        return (
            f"The likely cause is the radius {spec.radius:g} with the learning rate {where.rate:g}: gradients "
            "grow with the square of the radius. Lower either."
        )
    return f"The likely cause is the learning rate {where.rate:g}. Lower it, or add a warm-up to the schedule."
