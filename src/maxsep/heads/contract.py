"""The contract of a head, executable: run it on ours, and on a head of your own."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

__all__ = ["HeadContractError", "check_head"]

BATCH = 6


class HeadContractError(AssertionError):
    """A head breaks the contract; the message lists every demand it fails."""


def check_head(head: nn.Module, *, compile: bool = False) -> None:
    """Run the contract of a head on a copy of it; raise one error that lists all broken demands.

    A head has `in_features` and `num_classes`, maps (..., in_features) to (..., num_classes) logits for any leading
    shape, treats samples independently, lets gradients through to its input, keeps its fixed parts fixed under an
    optimiser with weight decay, and survives state dict, deepcopy, pickle, half precision and autocast.

    Args:
        head: Any module with those two attributes; it is not changed.
        compile: Also compile it without graph breaks (some seconds).

    >>> from maxsep import MaxSeparationHead
    >>> check_head(MaxSeparationHead(16, 5))
    """
    for name in ("in_features", "num_classes"):
        if not isinstance(getattr(head, name, None), int):
            raise HeadContractError(f"{type(head).__name__} has no whole number '{name}'. A head says its sizes.")
    failures = []
    with torch.random.fork_rng(devices=[]):
        for demand in (*_DEMANDS, *((_compiles,) if compile else ())):
            torch.manual_seed(0)
            try:
                demand(copy.deepcopy(head))
            except Exception as error:  # every failure becomes a line of the report
                failures.append(f"{demand.__name__.strip('_').replace('_', ' ')}: {type(error).__name__}: {error}")
    if failures:
        told = "\n  ".join(failures)
        raise HeadContractError(f"{type(head).__name__} breaks {len(failures)} demand(s) of a head:\n  {told}")


def _tensors(head: nn.Module) -> Iterator[Tensor]:
    return itertools.chain(head.parameters(), head.buffers())


def _inputs(head: nn.Module, *leading: int) -> Tensor:
    like = next(_tensors(head), torch.empty(0))
    return torch.randn(*leading, int(head.in_features), device=like.device, dtype=like.dtype)  # type: ignore[arg-type]


def _equal(actual: Tensor, expected: Tensor, what: str, tolerance: float = 1e-5) -> None:
    if actual.shape != expected.shape:
        raise ValueError(f"{what} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    scale = expected.abs().max().clamp_min(1e-30) if expected.numel() else expected.new_ones(())
    error = ((actual - expected).abs().max() / scale).item() if expected.numel() else 0.0
    if not error <= tolerance:
        raise ValueError(f"{what} differs by {error:.1e} of the largest logit, allowed {tolerance:.0e}")


def _logits_of_any_leading_shape(head: nn.Module) -> None:
    for leading in ((BATCH,), (1,), (0,), (2, 3), ()):
        shape = tuple(head(_inputs(head, *leading)).shape)
        if shape != (*leading, head.num_classes):
            raise ValueError(f"input of leading shape {leading} gave {shape}, not {(*leading, head.num_classes)}")


def _samples_independent_of_their_batch(head: nn.Module) -> None:
    head.eval()
    x = _inputs(head, BATCH)
    order = torch.randperm(BATCH, device=x.device)
    logits = head(x)
    _equal(head(x[order]), logits[order], "a shuffled batch")
    _equal(head(x[:2]), logits[:2], "a part of the batch")


def _gradient_reaches_the_input(head: nn.Module) -> None:
    x = _inputs(head, BATCH).requires_grad_()
    target = torch.arange(BATCH, device=x.device) % int(head.num_classes)  # type: ignore[arg-type]
    loss: Tensor = torch.nn.functional.cross_entropy(head(x).float(), target)
    loss.backward()  # type: ignore[no-untyped-call]
    if x.grad is None or not bool(x.grad.abs().sum() > 0) or not bool(x.grad.isfinite().all()):
        raise ValueError("the gradient of the input is missing, zero or not finite")
    for name, parameter in head.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ValueError(f"parameter '{name}' gets no gradient: DDP would wait for it for ever")


def _fixed_parts_stay_fixed(head: nn.Module) -> None:
    fixed = {name: tensor.clone() for name, tensor in head.named_buffers()}
    fixed |= {name: tensor.clone() for name, tensor in head.named_parameters() if not tensor.requires_grad}
    trained = [parameter for parameter in head.parameters() if parameter.requires_grad]
    body = nn.Linear(int(head.in_features), int(head.in_features)).to(next(_tensors(head), torch.empty(0)))  # type: ignore[arg-type]
    optimiser = torch.optim.SGD([*body.parameters(), *trained], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        head(body(_inputs(head, BATCH))).float().square().mean().backward()
        optimiser.step()
    for name, tensor in itertools.chain(head.named_buffers(), head.named_parameters()):
        if name in fixed and not torch.equal(tensor, fixed[name]):
            raise ValueError(f"fixed part '{name}' moved under an optimiser with weight decay")


def _state_dict_round_trip(head: nn.Module) -> None:
    other = copy.deepcopy(head)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    stream = io.BytesIO()
    torch.save(head.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    x = _inputs(head, BATCH)
    _equal(other.eval()(x), head.eval()(x), "a reloaded head", 0.0)


def _copies_and_pickles(head: nn.Module) -> None:
    x = _inputs(head, BATCH)
    expected = head.eval()(x)
    _equal(copy.deepcopy(head)(x), expected, "a deep copy", 0.0)
    _equal(pickle.loads(pickle.dumps(head))(x), expected, "an unpickled head", 0.0)


def _half_precision(head: nn.Module) -> None:
    head.eval().float()
    x = _inputs(head, BATCH)
    expected = head(x)
    for dtype in (torch.float16, torch.bfloat16):
        result = copy.deepcopy(head).to(dtype)(x.to(dtype))
        if not result.is_floating_point():
            raise ValueError(f"in {dtype} the logits are {result.dtype}")
        _equal(result.float(), expected, f"the head in {dtype}", 0.1)


def _autocast(head: nn.Module) -> None:
    head.eval().float()
    x = _inputs(head, BATCH)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        result = head(x)
    _equal(result.float(), head(x), "the head under autocast", 0.1)


def _compiles(head: nn.Module) -> None:
    x = _inputs(head, BATCH).requires_grad_()
    compiled = torch.compile(head, fullgraph=True)
    expected, actual = head(x), compiled(x)
    _equal(actual, expected, "the compiled head")
    gradient = torch.randn_like(expected)
    (reference,) = torch.autograd.grad(expected, x, gradient)
    (result,) = torch.autograd.grad(actual, x, gradient)
    _equal(result, reference, "the compiled head's gradient")


_DEMANDS: tuple[Callable[[nn.Module], None], ...] = (
    _logits_of_any_leading_shape,
    _samples_independent_of_their_batch,
    _gradient_reaches_the_input,
    _fixed_parts_stay_fixed,
    _state_dict_round_trip,
    _copies_and_pickles,
    _half_precision,
    _autocast,
)
