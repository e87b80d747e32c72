"""Pick some of many runs with a short expression, as `--only` takes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from maxsep.lab.spec import RunSpec

_FIELDS = tuple(field.name for field in dataclasses.fields(RunSpec))


@dataclass(frozen=True)
class Selection:
    """Terms joined by commas, all of which a run must meet.

    A term is `field=value` (alternatives with `|`, or by naming the field again) or a part of the run's name.

    >>> runs = [RunSpec(head=head, seed=seed) for head in ("plain", "maxsep") for seed in (0, 1)]
    >>> [spec.seed for spec in Selection.parse("head=maxsep").apply(runs)]
    [0, 1]
    >>> [spec.head for spec in Selection.parse("head=plain|maxsep,seed=1").apply(runs)]
    ['plain', 'maxsep']
    """

    fields: tuple[tuple[str, tuple[str, ...]], ...] = ()
    parts: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> Selection:
        """Read an expression; nothing selects everything."""
        fields: dict[str, list[str]] = {}
        parts: list[str] = []
        for term in filter(None, (term.strip() for term in (text or "").split(","))):
            key, equals, values = (piece.strip() for piece in term.partition("="))
            if not equals:
                parts.append(term)
            elif key not in _FIELDS:
                raise ValueError(
                    f"cannot select by {key!r} (in {text!r}). Fields of a run: {', '.join(_FIELDS)}. "
                    "A term without '=' is looked for in the run's name."
                )
            else:
                fields.setdefault(key, []).extend(value.strip() for value in values.split("|"))
        return cls(tuple((key, tuple(values)) for key, values in fields.items()), tuple(parts))

    def matches(self, spec: RunSpec) -> bool:
        """Whether a run meets every term."""
        return all(part in spec.name for part in self.parts) and all(
            any(_equal(getattr(spec, key), value) for value in values) for key, values in self.fields
        )

    def apply(self, specs: Sequence[RunSpec]) -> list[RunSpec]:
        """Keep the runs that match, in order; to match none of several is an error."""
        kept = [spec for spec in specs if self.matches(spec)]
        if specs and not kept:
            raise ValueError(f"no run matches {self}. {_choices(self, specs)}")
        return kept

    def __str__(self) -> str:
        return repr(",".join([*(f"{key}={'|'.join(values)}" for key, values in self.fields), *self.parts]))


def _equal(actual: object, wanted: str) -> bool:
    if isinstance(actual, int | float) and not isinstance(actual, bool):
        try:
            return float(wanted) == float(actual)
        except ValueError:
            return False
    return str(actual).lower() == wanted.lower()


def _choices(selection: Selection, specs: Sequence[RunSpec]) -> str:
    keys = [key for key, _ in selection.fields] or ["dataset", "imbalance", "network", "head"]
    there = (f"{key}: {', '.join(dict.fromkeys(str(getattr(spec, key)) for spec in specs))}" for key in keys)
    return f"Here there is {'; '.join(there)}."
