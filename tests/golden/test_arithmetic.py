"""Logits, linear forms and gradients in double precision, of parameters that depend on their names alone."""

import itertools

import pytest
import torch

import maxsep
from maxsep import heads, losses

IN, CLASSES, BATCH = 12, 7, 3
LINEAR = {
    "maxsep": {},
    "maxsep, radius 0.1": {"radius": 0.1},
    "maxsep, no bias": {"bias": False},
    "plain": {},
    "scaled": {"radius": 0.3},
    "learnable_matrix": {"radius": 0.5},
    "extra_layer": {},
    "etf": {"radius": 2.0},
    "etf, reserved": {"reserved": 2, "bias": True},
    "etf, rotation": {"rotation": 3},
    "hpn, dot products": {"normalise": False, "iterations": 100, "radius": 0.5},
}
CURVED = {
    "cosine": {"radius": 16.0},
    "cosine_maxsep": {},
    "maxsep_cosine": {"radius": 2.0},
    "centred_cosine": {"radius": 2.0},
    "hpn": {"iterations": 100},
    "etf, normalised": {"normalise": True, "radius": 10.0},
}
"""Heads that normalise, and have no linear form."""
TOLERANCE = {"hpn": 1e-9}
"""Prototypes of hpn come from a hundred steps of optimisation; everything else agrees to 1e-12."""


@pytest.mark.parametrize("case", LINEAR | CURVED)
def test_heads(golden, case):
    name = case.partition(",")[0]
    head = golden.fill(heads.build(name, IN, CLASSES, dtype=torch.float64, **(LINEAR | CURVED)[case]))
    x = golden.draw("features", BATCH, IN).requires_grad_()
    logits = head(x)
    tensors = {"logits": logits, "folded": maxsep.fold(head)(x), "features": head.features(x)}
    if case in LINEAR:
        tensors |= {
            key: part for key, part in zip(("weight", "bias"), head.linear_form(), strict=True) if part is not None
        }
    (logits * golden.draw("direction", BATCH, CLASSES)).sum().backward()
    tensors |= {f"gradient of {key}": p.grad for key, p in [("x", x), *head.named_parameters()]}
    entry = {key: tensor.flatten().tolist() for key, tensor in tensors.items()}
    golden("heads", case, entry | {"state": sorted(head.state_dict())}, TOLERANCE.get(name, 1e-12))


@pytest.mark.parametrize("num_classes", [2, 33, 257, 1500])
def test_the_matrix(golden, num_classes):
    x, linear = golden.draw("outputs", 5, num_classes - 1), golden.fill(torch.nn.Linear(IN, num_classes).double())
    head = maxsep.MaxSeparationHead.from_linear(linear, 0.3)
    tensors = {
        "simplex": maxsep.simplex(num_classes, dtype=torch.float64),
        "separate": maxsep.separate(x, 0.1),
        "layer": maxsep.MaxSeparation(num_classes, 0.5)(x),
        "weight from linear": head.weight,
        "bias from linear": head.bias,
        "logits": head(golden.draw("features", 4, IN)),
    }
    golden("matrix", str(num_classes), {key: golden.summary(t) for key, t in tensors.items()}, 1e-12)


SWITCHES = ("bias", "weight", "smoothing", "adjustment", "ignored")
FUSED = [("maxsep", CLASSES, on) for on in itertools.product((False, True), repeat=len(SWITCHES))]
FUSED += [case for on in (False, True) for case in (("plain", CLASSES, [on] * 5), ("scaled", CLASSES, [on] * 5))]
FUSED += [("maxsep", 1500, [on] * 5) for on in (False, True)]


@pytest.mark.parametrize(("name", "classes", "switches"), FUSED)
def test_fused_cross_entropy(golden, name, classes, switches):
    chosen = set(itertools.compress(SWITCHES, switches))
    radius, batch = 1.0 if name == "plain" else 0.3, 6
    head = golden.fill(heads.build(name, IN, classes, radius, bias="bias" in chosen, dtype=torch.float64))
    target = torch.arange(batch) * (classes - 1) // (batch - 1)
    options = {
        "weight": golden.draw("weight", classes).exp() if "weight" in chosen else None,
        "label_smoothing": 0.1 if "smoothing" in chosen else 0.0,
        "adjustment": golden.draw("adjustment", classes) if "adjustment" in chosen else None,
        "ignore_index": int(target[2]) if "ignored" in chosen else -100,
    }
    entry = {}
    for reduction in ("mean", "sum", "none"):
        x = golden.draw("features", batch, IN).requires_grad_()
        head.zero_grad()
        loss = losses.fused_cross_entropy(head, x, target, reduction=reduction, **options)
        (loss * golden.draw("direction", batch) if reduction == "none" else loss).sum().backward()
        parts = {"loss": loss, "x": x.grad} | {key: p.grad for key, p in head.named_parameters()}
        entry[reduction] = {key: golden.summary(part) for key, part in parts.items()}
    golden("fused_cross_entropy", f"{name}, {classes} classes: {'+'.join(sorted(chosen))}", entry, 1e-10)
