"""One of several processes that share a head's classes: `class_parallel_rank.py RANK RANKS PORT FOLDER`.

Everything is compared with one process in float64; distances are written to FOLDER/RANKS-RANK.pt.
"""

import contextlib
from pathlib import Path

import torch
from ranks import join, leave
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from maxsep import separate
from maxsep.heads import ClassParallelHead, MaxSeparationHead

BATCH, WIDTH = 6, 5
CASES = [
    {"classes": 11},
    {"classes": 11, "radius": 0.1, "bias": False, "label_smoothing": 0.1},
    {"classes": 100, "ignore_index": 3, "reduction": "sum", "label_smoothing": 1.0},
    {"classes": 101, "radius": 0.1, "reduction": "none", "label_smoothing": 0.3, "ignored": True},
    {"classes": 3, "reduction": "none", "bias": False},
    {"classes": 2},
    {"classes": 11, "weighted": True, "ignored": True},
    {"classes": 11, "weighted": True, "label_smoothing": 0.1, "ignored": True},
    {"classes": 2, "weighted": True, "label_smoothing": 0.3, "reduction": "none"},
]


def whole_head(classes, radius=1.0, bias=True):
    torch.manual_seed(classes)
    return MaxSeparationHead(WIDTH, classes, radius, bias).double()


def sharded(whole, **options):
    options = {"dtype": whole.weight.dtype} | options
    head = ClassParallelHead(whole.in_features, whole.num_classes, whole.radius, whole.bias is not None, **options)
    head.load_state_dict(whole.state_dict())
    return head


def batch(classes, size=BATCH, ignored=False):
    x = torch.randn(size, WIDTH, dtype=torch.float64) * 3
    target = torch.arange(size) * 7 % classes
    target[-1] = classes - 1  # the class without a row
    if ignored:
        target[1] = -100
    return x.requires_grad_(), target


def apart(actual, expected):
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    return float((actual - expected).detach().abs().max()) if actual.numel() else 0.0


def gradients_apart(head, whole, x, expected_x):
    pairs = [(p.grad.full_tensor(), whole.get_parameter(name).grad) for name, p in head.named_parameters()]
    return max(apart(*pair) for pair in [(x.grad, expected_x), *pairs])


def loss_case(classes, radius=1.0, bias=True, ignored=False, weighted=False, **options):
    whole = whole_head(classes, radius, bias)
    options |= {"weight": torch.rand(classes, dtype=torch.float64)} if weighted else {}
    head = sharded(whole)
    x, target = batch(classes, ignored=ignored)
    own = x.detach().clone().requires_grad_()
    expected, loss = F.cross_entropy(whole(x), target, **options), head.loss(own, target, **options)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    loss.backward(gradient)
    return max(apart(loss, expected), gradients_apart(head, whole, own, x.grad))


def logits_case(classes):
    """Any loss of the gathered logits, also one that depends on their common shift."""
    whole = whole_head(classes, 0.5)
    head = sharded(whole)
    x, _ = batch(classes)
    own = x.detach().clone().requires_grad_()
    gradient = torch.randn(2, 3, classes, dtype=torch.float64)
    expected, logits = whole(x.view(2, 3, WIDTH)), head(own.view(2, 3, WIDTH))
    expected.backward(gradient)
    logits.backward(gradient)
    return max(apart(logits, expected), gradients_apart(head, whole, own, x.grad))


def parts_case(classes, reduction, rank, ranks):
    """Each rank has its samples; the gradient is that of the mean over ranks, as under DDP."""
    whole = whole_head(classes, 0.1)
    head = sharded(whole, data_parallel=True)
    x, target = batch(classes, BATCH * ranks, ignored=True)
    own = x.detach().chunk(ranks)[rank].clone().requires_grad_()
    own_target = target.chunk(ranks)[rank]
    if reduction == "logits":
        expected, values = whole(x).square().sum(1), head(own).square().sum(1)
    else:
        options = {"reduction": reduction, "label_smoothing": 0.1}
        expected, values = F.cross_entropy(whole(x), target, **options), head.loss(own, own_target, **options)
    distance = apart(values, expected if expected.dim() == 0 else expected.chunk(ranks)[rank])
    (expected.sum() / (ranks if expected.dim() else 1)).backward()
    values.sum().backward()
    return max(distance, gradients_apart(head, whole, own, ranks * x.grad.chunk(ranks)[rank]))


def ddp_case(rank, ranks):
    """A network in DDP in front of the head takes the path of a single process."""

    def train(part, count):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh()).double()
        whole = whole_head(10)
        head = sharded(whole, data_parallel=True) if count > 1 else whole
        model = DistributedDataParallel(network) if count > 1 else network
        optimiser = torch.optim.SGD([*network.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(1)
        for _ in range(5):
            x = torch.randn(6, 4, dtype=torch.float64, generator=generator)
            y = torch.randint(10, (6,), generator=generator)
            features = model(x.chunk(count)[part])
            loss = head.loss(features, y.chunk(count)[part]) if count > 1 else F.cross_entropy(head(features), y)
            optimiser.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(head.parameters(), 0.1)
            optimiser.step()
        head = head.to_head() if count > 1 else head
        norm = norm.full_tensor() if count > 1 else norm
        return torch.cat([norm[None], *(p.detach().flatten() for p in (*network.parameters(), *head.parameters()))])

    return apart(train(rank, ranks), train(0, 1))


def predictions_case(classes, rank, ranks):
    whole = whole_head(classes, 0.3)
    x, _ = batch(classes, BATCH * ranks)
    expected, k = whole(x), min(4, classes)
    values, labels = sharded(whole).topk(x.view(ranks, BATCH, WIDTH), k)
    assert torch.equal(labels.flatten(0, 1), expected.topk(k).indices)
    parts = sharded(whole, data_parallel=True)
    assert torch.equal(parts.predict(x.chunk(ranks)[rank]), expected.argmax(1).chunk(ranks)[rank])
    return apart(values.flatten(0, 1), expected.topk(k).values)


def half_precision_case():
    """Sums are made in float32."""
    whole = whole_head(1000).to(torch.bfloat16)
    x, target = torch.randn(BATCH, WIDTH, dtype=torch.bfloat16), torch.arange(BATCH)
    expected = F.cross_entropy(separate(F.linear(x, whole.weight, whole.bias).double()), target)
    head, x = sharded(whole), x.requires_grad_()
    loss = head.loss(x, target)
    loss.backward()
    assert (loss.dtype, x.grad.dtype, head(x).dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)
    return abs(loss.item() - expected.item())


def start_case():
    """All ranks have one seed, yet draw different rows, and their generators stay equal."""
    torch.manual_seed(0)
    head = ClassParallelHead(WIDTH, 12)
    return {"rows": head.weight.to_local().detach().clone(), "next": torch.rand(3)}


def group_case(rank):
    group = distributed.new_group([0, 1])
    if rank == 2:
        with contextlib.suppress(ValueError):
            ClassParallelHead(WIDTH, 5, group=group)
            return torch.inf
        return 0.0
    whole = whole_head(7)
    head = sharded(whole, group=group)
    x, target = batch(7)
    assert torch.equal(head.to_head().weight, whole.weight)
    return apart(head.loss(x, target), F.cross_entropy(whole(x), target))


def state(head, optimiser):
    return {"head": head.state_dict(), "optimiser": optimiser.state_dict()}


def checkpoint_case(folder, ranks):
    """Two ranks train and save; three load the same bits, with Adam's moments, and go on."""
    head, whole = sharded(whole_head(11)), whole_head(11)
    optimiser, expected = torch.optim.Adam(head.parameters(), 0.1), torch.optim.Adam(whole.parameters(), 0.1)
    torch.manual_seed(5)

    def step(alone):
        x, target = batch(11)
        for loss, update in ((F.cross_entropy(whole(x), target), expected), (head.loss(x, target), optimiser))[:alone]:
            update.zero_grad()
            loss.backward()
            update.step()

    if ranks == 2:
        step(2)
        checkpoint.save(state(head, optimiser), checkpoint_id=folder / "two")
        return head.to_head().state_dict()
    step(1)
    for parameter in head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()  # makes the state that is read into
    saved = state(head, optimiser)
    checkpoint.load(saved, checkpoint_id=folder / "two")
    head.load_state_dict(saved["head"])
    optimiser.load_state_dict(saved["optimiser"])
    loaded = head.to_head().state_dict()
    step(2)
    return loaded | {"distance": apart(head.to_head().weight, whole.weight)}


def main():
    rank, ranks, folder = join()
    folder = Path(folder)
    distances = {
        "losses": [loss_case(**case) for case in CASES],
        "logits": [logits_case(classes) for classes in (2, 3, 11)],
        "parts": [parts_case(n, how, rank, ranks) for n in (2, 11) for how in ("mean", "sum", "none", "logits")],
        "ddp": [ddp_case(rank, ranks)],
        "predictions": [predictions_case(classes, rank, ranks) for classes in (2, 3, 11, 100)],
        "group": [group_case(rank)] if ranks == 3 else [],
    }
    result = {
        "distances": distances,
        "half precision": half_precision_case(),
        "start": start_case(),
        "checkpoint": checkpoint_case(folder, ranks),
    }
    torch.save(result, folder / f"{ranks}-{rank}.pt")
    leave()


if __name__ == "__main__":
    main()
