"""What a method is, and which baseline and control it is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from maxsep.lab.spec import Options, RunSpec, options

MATRIX_HEADS = ("maxsep", "cosine_maxsep", "maxsep_cosine")
"""Heads with the fixed matrix."""
BASELINES = ("plain", "scaled", "control", "cosine", "centred_cosine")
"""Heads without it, which need no control."""
HEADS = (
    *("plain", "scaled", "control", "maxsep", "maxsep_rotated", "learnable_matrix", "extra_layer", "etf", "hpn"),
    *("cosine", "cosine_maxsep", "centred_cosine", "maxsep_cosine"),
)
"""All heads in the order of tables."""
_COSINE_CONTROLS = {
    "cosine": "cosine", "cosine_maxsep": "cosine", "centred_cosine": "cosine", "maxsep_cosine": "centred_cosine",
}  # fmt: skip
"""Heads on directions: `cosine` is their baseline, and each has the control that differs in the matrix alone."""
_OWN_LOSSES = ("squared_cosine",)
"""Losses of prototypes that a linear head does not have."""


class Method(NamedTuple):
    """What differs between the rows of a comparison: head, radius and loss."""

    head: str
    radius: float = 1.0
    head_options: Options = ()
    loss: str = "cross_entropy"
    loss_options: Options = ()

    @classmethod
    def of(cls, spec: RunSpec) -> Method:
        """The method of a run; `scaled` at radius 1 computes what `plain` computes and is listed as such."""
        head = "plain" if (spec.head, spec.radius, spec.head_options) == ("scaled", 1.0, ()) else spec.head
        order = () if spec.class_order is None else (("class_order", spec.class_order),)
        loss = dict(spec.loss_options)
        if spec.reweights:
            loss = {"reweight": "effective", "reweight_from": 0} | loss
        return cls(head, spec.radius, (*order, *spec.head_options), spec.loss, options(**loss))

    @property
    def baseline(self) -> Method:
        """The linear head with the same loss; `cosine` for heads on directions.

        >>> Method("maxsep", 0.1).baseline.head, Method("maxsep_cosine", loss="ldam").baseline.head
        ('plain', 'cosine')
        """
        if self.head in _COSINE_CONTROLS:
            return Method("cosine", 1.0, (), self.loss, self.loss_options)
        return USUAL if self.loss in _OWN_LOSSES else Method("plain", 1.0, (), self.loss, self.loss_options)

    @property
    def controls(self) -> tuple[Method, ...]:
        """The controls of a method, the best first: the exact one, `scaled`, and at radius 1 the linear head.

        >>> [method.head for method in Method("maxsep", 0.1).controls]
        ['control', 'scaled']
        """
        if self.head in BASELINES:
            return ()
        if self.head in _COSINE_CONTROLS:
            return (self._replace(head=_COSINE_CONTROLS[self.head], head_options=()),)
        last = "plain" if self.radius == 1 else "scaled"
        return tuple(Method(head, self.radius, (), self.loss, self.loss_options) for head in ("control", last))

    @property
    def brings_loss(self) -> bool:
        """Whether it stands for its loss: a baseline with another loss than cross-entropy."""
        return self == self.baseline and self != USUAL and (self.head == "plain" or self.loss != USUAL.loss)

    @property
    def order(self) -> tuple[object, ...]:
        """Cross-entropy first; in each loss the linear head, then controls and matrix by falling radius."""
        rank = HEADS.index(self.head) if self.head in HEADS else len(HEADS)
        loss = self.loss != "cross_entropy", self.loss, len(self.loss_options), repr(self.loss_options)
        pair = -self.radius if rank <= 3 else -math.inf
        return (*loss, self.head != "plain", rank > 3, pair, rank, -self.radius, repr(self.head_options))


USUAL = Method("plain")
"""A linear head with cross-entropy: what other losses are compared with."""


def several_losses(methods: Iterable[Method]) -> bool:
    """Whether a head appears with cross-entropy and with another loss, so that its name must say which."""
    known = set(methods)
    usual = {method.head for method in known if method.loss == "cross_entropy"}
    others = [method for method in known if method.loss != "cross_entropy"]
    return any(method.head in usual or (method.brings_loss and USUAL in known) for method in others)
