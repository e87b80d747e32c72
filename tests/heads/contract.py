"""The contract of a head, executable: `check_head(head)` raises AssertionError with the name of the broken demand."""

import copy
import io
import itertools
import pickle

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 6


def check_head(head, *, compile=False):
    """Run every demand on a copy of the head; with `compile`, also compile it without graph breaks."""
    with torch.random.fork_rng(devices=[]):
        for demand in (*DEMANDS, *((compiles,) if compile else ())):
            torch.manual_seed(0)
            try:
                demand(copy.deepcopy(head))
            except Exception as error:
                raise AssertionError(f"{type(head).__name__}: {demand.__name__}: {error!r}") from error


def tensors(head):
    return itertools.chain(head.parameters(), (b for b in head.buffers() if b.is_floating_point()))


def inputs(head, *leading):
    like = next(tensors(head), torch.empty(0))
    return torch.randn(*leading, head.in_features, device=like.device, dtype=like.dtype)


def close(actual, expected, tolerance=1e-5):
    scale = expected.abs().max().item() if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)


def logits_of_any_leading_shape(head):
    for leading in ((BATCH,), (1,), (0,), (2, 3), ()):
        assert head(inputs(head, *leading)).shape == (*leading, head.num_classes)


def samples_are_independent(head):
    head.eval()
    x = inputs(head, BATCH)
    order = torch.randperm(BATCH, device=x.device)
    logits = head(x)
    close(head(x[order]), logits[order])
    close(head(x[:2]), logits[:2])


def gradient_reaches_everything(head):
    x = inputs(head, BATCH).requires_grad_()
    target = torch.arange(BATCH, device=x.device) % head.num_classes
    F.cross_entropy(head(x).float(), target).backward()
    assert x.grad.isfinite().all()
    assert x.grad.abs().sum() > 0
    assert all(p.grad is not None for p in head.parameters() if p.requires_grad)


def fixed_parts_stay_fixed(head):
    fixed = {name: t.clone() for name, t in head.named_buffers()}
    body = nn.Linear(head.in_features, head.in_features).to(next(tensors(head), torch.empty(0)))
    optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        head(body(inputs(head, BATCH))).float().square().mean().backward()
        optimiser.step()
    assert all(torch.equal(t, fixed[name]) for name, t in head.named_buffers())


def state_dict_round_trip(head):
    other = copy.deepcopy(head)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    stream = io.BytesIO()
    torch.save(head.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    x = inputs(head, BATCH)
    assert torch.equal(other.eval()(x), head.eval()(x))


def copies_and_pickles(head):
    x = inputs(head, BATCH)
    expected = head.eval()(x)
    assert torch.equal(copy.deepcopy(head)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(head))(x), expected)


def half_precision_and_autocast(head):
    head.eval().float()
    x = inputs(head, BATCH)
    expected = head(x)
    for dtype in (torch.float16, torch.bfloat16):
        logits = copy.deepcopy(head).to(dtype)(x.to(dtype))
        assert logits.dtype == dtype
        close(logits.float(), expected, 0.1)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        logits = head(x)
    close(logits.float(), expected, 0.1)


def compiles(head):
    x = inputs(head, BATCH).requires_grad_()
    expected, actual = head(x), torch.compile(head, fullgraph=True)(x)
    close(actual, expected)
    gradient = torch.randn_like(expected)
    close(*(torch.autograd.grad(logits, x, gradient)[0] for logits in (actual, expected)))


DEMANDS = (
    logits_of_any_leading_shape,
    samples_are_independent,
    gradient_reaches_everything,
    fixed_parts_stay_fixed,
    state_dict_round_trip,
    copies_and_pickles,
    half_precision_and_autocast,
)
