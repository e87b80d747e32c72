"""Pairs of runs that search in each other's galleries: recall at 1 within a model and across two."""

from __future__ import annotations

from collections.abc import Sequence

from maxsep.lab.compatibility import EMBEDDINGS, PARTS
from maxsep.lab.report.comparison import Entry, Method, Setting
from maxsep.lab.report.model import Section
from maxsep.lab.report.statistics import Comparison, Summary, adjust, compare, summarise
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, rounded

_RECALLS = {
    "known, across": ("known", "across"),
    "unseen, self": ("unseen", "self"),
    "unseen, across": ("unseen", "across"),
}
_COLUMNS = ("head, compared by", *_RECALLS, "gain over plain's logits", "gain over orthonormal")
_ALL = ("unseen", "features", "across")
"""What every pair has."""
_PLAIN = Method("plain", 1.0)
_WORDS = {"features": "features", "logits": "logits", "aligned": "aligned features"}
_CAPTION = (
    "Recall at 1 by cosine, in percent: the nearest other test image has the same class. Self: within one model. "
    "Across: queries of one model, gallery of another that differs in its seed. Known: the classes that were trained "
    "on; unseen: the others. Means over pairs of runs, none of which is in two pairs. Gains are in points of the last "
    "column of recalls, over common pairs; behind a p-value stands the one after Holm's correction for the tests of "
    "this table, where it is another; in colour: what is still more than noise after it."
)
_TEXT = (
    "If another training gives other features, a gallery has to be embedded again with every new model. Class vectors "
    "that are fixed beforehand give the features of all models the same coordinates. Three controls: class vectors at "
    "right angles are as fixed as those of the simplex; the logits of a plain head, less their mean, are coordinates "
    "as well, one for each class; and whoever has both models can turn the features of one onto those of the other, "
    "by the orthogonal map that fits best on the training images (aligned features).",
)


def compatible_section(settings: Sequence[Setting]) -> Section | None:
    """Tabulate the pairs of every setting that has some; nothing if there are none."""
    tables = [_table(number, setting) for number, setting in enumerate(filter(_has_pairs, settings), 1)]
    if not tables:
        return None
    return Section("compatible", "Embeddings of models that were trained apart", _TEXT, tuple(tables))


def compatible_sentences(settings: Sequence[Setting]) -> list[str]:
    """Say for every setting what is found across models, of the classes that were trained on and of the others."""
    return [_sentence(setting) for setting in settings if _has_pairs(setting)]


def _sentence(setting: Setting) -> str:
    told = []
    for method, entry in setting.entries.items():
        for kind in EMBEDDINGS if method == _PLAIN else EMBEDDINGS[:1]:
            parts = [_pairs(entry, part, kind, "across") for part in PARTS]
            if all(parts):
                known, unseen = (f"{rounded(100 * summarise(list(part.values())).mean)}" for part in parts)
                told.append(f"{_WORDS[kind]} of {setting.name(method)} {known} and {unseen} %")
    return (
        f"{setting.label}, recall at 1 across models that were trained apart, of known and of unseen classes: "
        f"{'; '.join(told)}."
    )


def _has_pairs(setting: Setting) -> bool:
    return any(_pairs(entry, *_ALL) for entry in setting.entries.values())


def _pairs(entry: Entry | None, part: str, kind: str, which: str) -> dict[int, float]:
    """Give a recall of each pair, by the seed of its second run."""
    records = {} if entry is None else entry.records
    return {
        seed: float(record.compatibility[part][kind][which])
        for seed, record in sorted(records.items())
        if record.compatibility is not None
    }


def _table(number: int, setting: Setting) -> Table:
    shown = [(method, kind) for method, entry in setting.entries.items() for kind in EMBEDDINGS if _pairs(entry, *_ALL)]
    gains = adjust([found for method, kind in shown for found in _comparisons(setting, method, kind)])
    rows = []
    for place, (method, kind) in enumerate(shown):
        recalls = [_recall(setting.entries[method], *of, kind) for of in _RECALLS.values()]
        found = [EMPTY if comparison is None else gain(comparison) for comparison in gains[2 * place : 2 * place + 2]]
        rows.append(Row((Cell(setting.name(method), _WORDS[kind]), *recalls, *found), "" if place else _count(setting)))
    return Table(f"compatible-{number}", setting.label, _COLUMNS, tuple(rows), _CAPTION)


def _count(setting: Setting) -> str:
    """Say how many pairs there are of every head, where all have as many."""
    counts = {len(pairs) for entry in setting.entries.values() if (pairs := _pairs(entry, *_ALL))}
    told = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return f"{told} pair{'' if told == '1' else 's'} of runs"


def _recall(entry: Entry, part: str, which: str, kind: str) -> Cell:
    summary: Summary = summarise(list(_pairs(entry, part, kind, which).values()))
    spread = "" if summary.std is None else f"± {rounded(100 * summary.std)}"
    return Cell(rounded(100 * summary.mean), spread, value=100 * summary.mean)


def _comparisons(setting: Setting, method: Method, kind: str) -> tuple[Comparison | None, Comparison | None]:
    """Compare what is found across models, of unseen classes: with a plain head's logits, and etf with its control."""
    ours = _pairs(setting.entries[method], "unseen", kind, "across")
    own = (method, kind) == (_PLAIN, "logits")
    plain = {} if own else _pairs(setting.entries.get(_PLAIN), "unseen", "logits", "across")
    control: dict[int, float] = {}
    if method.head == "etf":
        alike = tuple(option for option in method.head_options if option[0] != "rotation")
        like = Method("orthonormal", method.radius, alike, method.loss, method.loss_options)
        control = _pairs(setting.entries.get(like), "unseen", kind, "across")
    return (compare(ours, plain) if plain else None), (compare(ours, control) if control else None)
