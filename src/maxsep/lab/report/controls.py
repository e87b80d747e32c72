"""Define a method, and the baseline and control that it is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from maxsep.lab.spec import Options, RunSpec, options

MATRIX_HEADS = ("maxsep", "cosine_maxsep", "maxsep_cosine")
"""Heads with the fixed matrix."""
BASELINES = ("plain", "scaled", "control", "cosine", "centred_cosine")
"""Heads without it, which need no control."""
HEADS = {
    "plain": ("linear", "A linear layer from the features to the classes: the usual head."),
    "scaled": ("linear \N{MULTIPLICATION SIGN} {radius}, not centred", "A linear head times the radius: the control "
               "where no exact one was run. At radius 1 it is the linear head."),
    "control": ("control, radius {radius}", "A linear layer times radius · sqrt(C/(C \N{MINUS SIGN} 1)), started "
                "centred: under SGD it trains as maxsep does."),
    "maxsep": ("maxsep, radius {radius}", "A linear layer to C \N{MINUS SIGN} 1 outputs, then the fixed matrix: "
               "logits = radius · Pᵀx."),
    "maxsep_rotated": ("maxsep rotated, radius {radius}", "The matrix times a fixed random orthogonal matrix."),
    "learnable_matrix": ("learnable matrix, radius {radius}", "The matrix as the starting point of a trained one."),
    "extra_layer": ("extra layer", "One more trained layer with a random start in place of the matrix."),
    "etf": ("fixed simplex (ETF)", "The matrix directly on the features, with no trained layer between."),
    "hpn": ("optimised prototypes", "Class vectors separated by gradient descent before training (Mettes et al., "
            "Hyperspherical Prototype Networks, NeurIPS 2019)."),
    "cosine": ("cosine", "Logits are cosines with trained vectors: LDAM's head, and the baseline of those below."),
    "cosine_maxsep": ("maxsep after cosines", "The matrix behind a cosine layer; its control is cosine."),
    "centred_cosine": ("centred cosine", "A linear head with centred and normalised logits."),
    "maxsep_cosine": ("cosines with maxsep's columns", "Logits are cosines with the columns of the matrix; its control "
                      "is centred cosine."),
}  # fmt: skip
"""Labels of the heads and what they are, in the order of tables."""
_COSINE_CONTROLS = {
    "cosine": "cosine", "cosine_maxsep": "cosine", "centred_cosine": "cosine", "maxsep_cosine": "centred_cosine",
}  # fmt: skip
"""Heads on directions: `cosine` is their baseline, and each has the control that differs in the matrix alone."""
_OWN_LOSSES = ("squared_cosine",)
"""Losses of prototypes that a linear head does not have."""


class Method(NamedTuple):
    """A row of a comparison: head, radius and loss."""

    head: str
    radius: float = 1.0
    head_options: Options = ()
    loss: str = "cross_entropy"
    loss_options: Options = ()

    @classmethod
    def of(cls, spec: RunSpec) -> Method:
        """Return the method of a run; `scaled` at radius 1 computes what `plain` computes and is listed as such."""
        head = "plain" if (spec.head, spec.radius, spec.head_options) == ("scaled", 1.0, ()) else spec.head
        order = () if spec.class_order is None else (("class_order", spec.class_order),)
        loss = dict(spec.loss_options)
        if spec.reweights:
            loss = {"reweight": "effective", "reweight_from": 0} | loss
        return cls(head, spec.radius, (*order, *spec.head_options), spec.loss, options(**loss))

    @property
    def baseline(self) -> Method:
        """The linear head with the same loss; `cosine` for heads on directions."""
        if self.head in _COSINE_CONTROLS:
            return Method("cosine", 1.0, (), self.loss, self.loss_options)
        return USUAL if self.loss in _OWN_LOSSES else Method("plain", 1.0, (), self.loss, self.loss_options)

    @property
    def controls(self) -> tuple[Method, ...]:
        """The controls of a method, the best first: the exact one, `scaled`, and at radius 1 the linear head."""
        if self.head in BASELINES:
            return ()
        if self.head in _COSINE_CONTROLS:
            return (self._replace(head=_COSINE_CONTROLS[self.head], head_options=()),)
        last = "plain" if self.radius == 1 else "scaled"
        return tuple(Method(head, self.radius, (), self.loss, self.loss_options) for head in ("control", last))

    @property
    def brings_loss(self) -> bool:
        """Return whether it stands for its loss: a baseline with another loss than cross-entropy."""
        return self == self.baseline and self != USUAL and (self.head == "plain" or self.loss != USUAL.loss)

    @property
    def order(self) -> tuple[object, ...]:
        """Cross-entropy first; in each loss the linear head, then controls and matrix by falling radius."""
        rank = list(HEADS).index(self.head) if self.head in HEADS else len(HEADS)
        loss = self.loss != "cross_entropy", self.loss, len(self.loss_options), repr(self.loss_options)
        pair = -self.radius if rank <= 3 else -math.inf
        return (*loss, self.head != "plain", rank > 3, pair, rank, -self.radius, repr(self.head_options))


USUAL = Method("plain")
"""A linear head with cross-entropy: what other losses are compared with."""


def several_losses(methods: Iterable[Method]) -> bool:
    """Return whether a head appears with cross-entropy and with another loss, so that its name must say which."""
    known = set(methods)
    usual = {method.head for method in known if method.loss == "cross_entropy"}
    others = [method for method in known if method.loss != "cross_entropy"]
    return any(method.head in usual or (method.brings_loss and USUAL in known) for method in others)
