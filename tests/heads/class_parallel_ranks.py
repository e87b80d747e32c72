"""One of several processes that share a head's classes: `class_parallel_ranks.py RANK RANKS PORT FOLDER`.

Everything is compared with one process in float64, and what was found is written to FOLDER/RANKS-RANK.pt.
"""

import contextlib
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from maxsep import separate
from maxsep.heads import ClassParallelHead, MaxSeparationHead
from maxsep.surgery import load_shards, save_shards

BATCH, WIDTH = 6, 5
CASES = [
    {"classes": 11},
    {"classes": 11, "radius": 0.1, "bias": False, "label_smoothing": 0.1},
    {"classes": 100, "ignore_index": 3, "reduction": "sum", "label_smoothing": 1.0},
    {"classes": 101, "radius": 0.1, "reduction": "none", "label_smoothing": 0.3, "ignored": True},
    {"classes": 3, "reduction": "none", "bias": False},
    {"classes": 2},
    {"classes": 2, "radius": 0.1, "reduction": "sum", "label_smoothing": 0.1, "ignored": True},
    {"classes": 11, "weighted": True, "ignored": True},
    {"classes": 11, "weighted": True, "label_smoothing": 0.1, "ignored": True},
    {"classes": 2, "weighted": True, "label_smoothing": 0.3, "reduction": "none"},
]
COLLECTIVES = [
    "all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object", "all_reduce", "all_to_all",
    "all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather", "reduce", "reduce_scatter",
    "reduce_scatter_tensor", "reduce_scatter_single", "scatter", "send", "recv", "isend", "irecv",
]  # fmt: skip


def whole_head(classes, radius=1.0, bias=True):
    torch.manual_seed(classes)
    return MaxSeparationHead(WIDTH, classes, radius, bias).double()


def sharded(whole, **options):
    options = {"dtype": whole.weight.dtype} | options
    head = ClassParallelHead(whole.in_features, whole.num_classes, whole.radius, whole.bias is not None, **options)
    head.load_full_state_dict(whole.state_dict())
    return head


def batch(classes, size=BATCH, ignored=False):
    x = torch.randn(size, WIDTH, dtype=torch.float64) * 3
    target = torch.arange(size) * 7 % classes
    target[-1] = classes - 1  # the class without a row
    if ignored:
        target[1] = -100
    return x.requires_grad_(), target


def apart(found, expected):
    assert found.shape == expected.shape, (found.shape, expected.shape)
    return float((found - expected).detach().abs().max()) if found.numel() else 0.0


def compare_gradients(head, whole, x, expected_x):
    rows = slice(*head.shard.rows)
    pairs = [(x.grad, expected_x)]
    pairs += [(p.grad, whole.get_parameter(name).grad[rows]) for name, p in head.named_parameters()]
    return max(apart(found, expected) for found, expected in pairs)


def loss_case(classes, radius=1.0, bias=True, ignored=False, weighted=False, **options):
    whole = whole_head(classes, radius, bias)
    options |= {"weight": torch.rand(classes, dtype=torch.float64)} if weighted else {}
    head = sharded(whole)
    x, target = batch(classes, ignored=ignored)
    own = x.detach().clone().requires_grad_()
    expected, found = F.cross_entropy(whole(x), target, **options), head.loss(own, target, **options)
    gradient = torch.randn_like(expected)
    expected.backward(gradient)
    found.backward(gradient)
    return max(apart(found, expected), compare_gradients(head, whole, own, x.grad))


def logits_case(classes):
    """Any loss of the gathered logits, also one that sees their common shift."""
    whole = whole_head(classes, 0.5)
    head = sharded(whole)
    x, _ = batch(classes)
    own = x.detach().clone().requires_grad_()
    gradient = torch.randn(2, 3, classes, dtype=torch.float64)
    expected, found = whole(x.view(2, 3, WIDTH)), head(own.view(2, 3, WIDTH))
    expected.backward(gradient)
    found.backward(gradient)
    return max(apart(found, expected), compare_gradients(head, whole, own, x.grad))


def parts_case(classes, reduction, rank, ranks, loss=None):
    """Each rank has its own samples; the gradient is that of the mean over ranks, as under DDP."""
    whole = whole_head(classes, 0.1)
    head = sharded(whole, data_parallel=True)
    x, target = batch(classes, BATCH * ranks, ignored=True)
    own = x.detach().chunk(ranks)[rank].clone().requires_grad_()
    own_target = target.chunk(ranks)[rank]
    if loss is None:
        expected = F.cross_entropy(whole(x), target, reduction=reduction, label_smoothing=0.1)
        found = head.loss(own, own_target, reduction=reduction, label_smoothing=0.1)
    else:
        expected, found = loss(whole(x)), loss(head(own))
    difference = apart(found, expected if expected.dim() == 0 else expected.chunk(ranks)[rank])
    (expected.sum() / (ranks if expected.dim() else 1)).backward()
    found.sum().backward()
    return max(difference, compare_gradients(head, whole, own, ranks * x.grad.chunk(ranks)[rank]))


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
            optimiser.step()
        return network.state_dict(), head.full_state_dict() if count > 1 else head.state_dict()

    (alone, head), (together, parts) = train(0, 1), train(rank, ranks)
    return max(
        apart(found[name], expected[name])
        for found, expected in ((together, alone), (parts, head))
        for name in expected
    )


def predictions_case(classes, rank, ranks):
    whole = whole_head(classes, 0.3)
    x, _ = batch(classes, BATCH * ranks)
    logits = whole(x)
    count = min(4, classes)
    head = sharded(whole)
    values, found = head.topk(x.view(ranks, BATCH, WIDTH), count)
    assert found.shape == (ranks, BATCH, count)
    expected = logits.topk(count)
    assert torch.equal(found.flatten(0, 1), expected.indices)
    assert torch.equal(head.predict(x), logits.argmax(1))
    parts = sharded(whole, data_parallel=True)
    assert torch.equal(parts.predict(x.chunk(ranks)[rank]), logits.argmax(1).chunk(ranks)[rank])
    return apart(values.flatten(0, 1), expected.values)


def half_precision_case(rank, ranks):
    """The sums are float32's: as close to float64 as the rounded outputs of the layer allow."""
    whole = whole_head(1000).to(torch.bfloat16)
    x, target = torch.randn(BATCH * ranks, WIDTH, dtype=torch.bfloat16), torch.arange(BATCH * ranks)
    expected = F.cross_entropy(separate(F.linear(x, whole.weight, whole.bias).double()), target)
    found = {}
    for parts in (False, True):
        head = sharded(whole, data_parallel=parts)
        own, labels = (tensor.chunk(ranks)[rank] if parts else tensor for tensor in (x, target))
        own = own.clone().requires_grad_()
        loss = head.loss(own, labels)
        loss.backward()
        dtypes = [loss.dtype, own.grad.dtype, head(own).dtype]
        found[parts] = {"dtypes": dtypes, "difference": abs(loss.item() - expected.item())}
    return found


def counted(work):
    """Run something and return the collective calls it made, with the numbers that each sent from this rank."""
    calls, kept = [], {name: getattr(distributed, name) for name in COLLECTIVES if hasattr(distributed, name)}

    def counting(name):
        def call(*arguments, **options):
            tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
            calls.append((name.removesuffix("_single").removesuffix("_into_tensor"), tensors[-1].numel()))
            return kept[name](*arguments, **options)

        return call

    for name in kept:
        setattr(distributed, name, counting(name))
    try:
        result = work()
    finally:
        for name, function in kept.items():
            setattr(distributed, name, function)
    return calls, result


def counts_case():
    head, parts = sharded(whole_head(11)), sharded(whole_head(11), data_parallel=True)
    x, target = batch(11)
    first = [counted(lambda head=head: head.loss(x, target))[0] for head in (head, parts)]
    first += [counted(lambda: sharded(whole_head(11)).topk(x, 2))[0]]
    every = sharded(whole_head(11), validate=True)
    first += [counted(lambda: every.loss(x, target))[0] for _ in range(2)]
    forward, loss = counted(lambda: head.loss(x, target, label_smoothing=0.1))
    backward, _ = counted(loss.backward)
    alone, loss = counted(lambda: head.loss(x.detach(), target))
    nothing, _ = counted(loss.backward)
    parts_forward, loss = counted(lambda: parts.loss(x, target))
    parts_backward, _ = counted(loss.backward)
    predict, _ = counted(lambda: head.topk(x, 2))
    return [first, forward, backward, alone, nothing, parts_forward, parts_backward, predict]


def start_case():
    """All ranks have one seed, yet draw other rows, and their generators go on alike."""
    torch.manual_seed(0)
    head = ClassParallelHead(WIDTH, 12)
    return {"rows": head.weight.detach().clone(), "next": torch.rand(3)}


def group_case(rank):
    group = distributed.new_group([0, 1])
    if rank == 2:
        try:
            ClassParallelHead(WIDTH, 5, group=group)
        except ValueError as error:
            return str(error)
    whole = whole_head(7)
    head = sharded(whole, group=group)
    x, target = batch(7)
    assert apart(head.to_head().weight, whole.weight) == 0
    return apart(head.loss(x, target), F.cross_entropy(whole(x), target))


def trained(head, optimiser):
    x, target = batch(head.num_classes)
    loss = head.loss(x, target) if isinstance(head, ClassParallelHead) else F.cross_entropy(head(x), target)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


def checkpoint_case(folder, ranks):
    """Three ranks train and save, two go on: with one process's path, momentum and all."""
    whole = whole_head(11)
    head = sharded(whole)
    adam = {"lr": 0.1}
    torch.manual_seed(5)
    optimiser = torch.optim.Adam(head.parameters(), **adam)
    if ranks == 3:
        trained(head, optimiser)
        save_shards(head, folder / "three", optimiser=optimiser)
        return None
    expected = torch.optim.Adam(whole.parameters(), **adam)
    load_shards(folder / "three", head, optimiser=optimiser)
    trained(whole, expected)
    torch.manual_seed(6)
    trained(head, optimiser)
    torch.manual_seed(6)
    trained(whole, expected)
    save_shards(head, folder / "two", optimiser=optimiser)
    save_shards(head, folder / "two", optimiser=optimiser)  # over an earlier one
    return {"difference": apart(head.to_head().weight, whole.weight), "whole": whole.state_dict()}


def refusals_case(folder, rank):
    """What goes wrong on one rank is told on all."""
    told = []
    head = sharded(whole_head(11))

    def refused(work):
        try:
            work()
        except (ValueError, OSError) as error:
            told.append(f"{type(error).__name__}: {error}")

    if rank == 0:
        (folder / "foreign").mkdir()
    distributed.barrier()
    refused(lambda: save_shards(head, folder / "foreign"))
    save_shards(head, folder / "damaged")
    if rank == 0:
        path = folder / "damaged" / "rows-0-5.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    distributed.barrier()
    before = head.weight.detach().clone()
    refused(lambda: load_shards(folder / "damaged", head))
    assert torch.equal(head.weight, before)
    optimiser = torch.optim.Adagrad(head.parameters())
    if rank == 1:
        optimiser.state[head.weight]["odd"] = torch.zeros(3)
    refused(lambda: save_shards(head, folder / "odd", optimiser=optimiser))
    assert not (folder / "odd").exists()
    return told


def main():
    rank, ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    result = {
        "losses": [loss_case(**case) for case in CASES],
        "logits": [logits_case(classes) for classes in (2, 3, 11)],
        "parts": [parts_case(classes, how, rank, ranks) for classes in (2, 11) for how in ("mean", "sum", "none")],
        "parts of logits": parts_case(11, None, rank, ranks, lambda logits: logits.square().sum(1)),
        "ddp": ddp_case(rank, ranks),
        "predictions": [predictions_case(classes, rank, ranks) for classes in (2, 3, 11, 100)],
        "half precision": half_precision_case(rank, ranks),
        "counts": counts_case(),
        "start": start_case(),
        "checkpoint": checkpoint_case(folder, ranks),
    }
    result |= {"group": group_case(rank)} if ranks == 3 else {"refusals": refusals_case(folder, rank)}
    torch.save(result, folder / f"{ranks}-{rank}.pt")
    with contextlib.suppress(RuntimeError):  # who is through first closes its connections
        distributed.barrier()
    os._exit(0)  # threads of torch that still run while the interpreter is taken down now and then abort the process


if __name__ == "__main__":
    main()
