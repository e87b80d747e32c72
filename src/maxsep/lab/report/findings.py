"""What the numbers say, in sentences that claim no more than the tests allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from maxsep.lab.report.cautions import cautions
from maxsep.lab.report.comparison import MATRIX_HEADS, Method, Setting
from maxsep.lab.report.family import Against, Family, family
from maxsep.lab.report.model import Finding
from maxsep.lab.report.statistics import LEVEL, MIN_SEEDS, Comparison
from maxsep.lab.report.tables import rounded, signed, verdict_text

_FEW = 4
_NO_CONTROL = "the control is still missing or has too few seeds"


@dataclass(frozen=True)
class _Pair:
    """A head with the matrix against one without, in one setting; won and lost are verdicts before correction."""

    setting: Setting
    method: Method
    other: Method
    comparison: Comparison

    @property
    def won(self) -> bool:
        return self.comparison.passes and self.comparison.difference > 0

    @property
    def lost(self) -> bool:
        return self.comparison.passes and self.comparison.difference < 0

    @property
    def tested(self) -> bool:
        """Whether there is a p-value; equal numbers and too few seeds have none."""
        return self.comparison.p is not None

    @property
    def where(self) -> str:
        name = self.setting.full_name(self.method)
        if name == Method("maxsep", self.method.radius).full_label:
            name = f"radius {self.method.radius:g}"
        return f"{self.setting.label}, {name}"


def find(settings: Sequence[Setting], tests: Family | None = None) -> Finding:
    """Compute the headline and its sentences.

    Args:
        settings: Settings evaluated on test data; `chosen` tells the radius that held-out data chose in each.
        tests: The comparisons of all settings, as `family` makes them.
    """
    tests = family(settings) if tests is None else tests
    plain, control = _pairs(settings, tests, "plain"), _pairs(settings, tests, "control")
    if not plain:
        return Finding(
            "Nothing to compare yet", ("No setting has finished runs of both the matrix and the plain head.",)
        )
    sentences = [*_details(plain, control), *map(_chosen, settings)]
    credited = [*control, *filter(_is_own_control, plain)]
    meaning = _interpretation(plain, credited)
    # among many numbers what they mean comes first, a few speak before it
    if len(plain) > _FEW:
        sentences.insert(0, meaning)
        sentences.append(_count(_without(plain), plain))
        sentences.append(_count(_control(control), control))
    if not control and (missing := _missing(plain)):
        sentences.append(f"The control ({missing}) has no finished runs beside the matrix yet.")
    sentences += ["" if meaning in sentences else meaning, *_cautions(settings), _multiplicity(tests)]
    headline = _chosen_headline(settings, plain, control) or _headline(_at_chosen(plain), _at_chosen(credited))
    return Finding(headline, tuple(filter(None, sentences)))


def _cautions(settings: Sequence[Setting]) -> list[str]:
    """Warn of heads that have hardly trained, on the page of one comparison; among many the tables show them."""
    if len(settings) != 1 or not (counts := settings[0].class_counts):
        return []
    (setting,) = settings
    arms = {setting.full_name(m): (setting.full_name(m.plain), entry) for m, entry in setting.entries.items()}
    return cautions(arms, len(counts))


def _pairs(settings: Sequence[Setting], tests: Family, against: Against) -> list[_Pair]:
    found = []
    for setting in settings:
        for method in setting.entries:
            other = setting.plain(method) if against == "plain" else setting.control(method)
            if method.head in MATRIX_HEADS and other is not None and (setting.spec, method, against) in tests:
                found.append(_Pair(setting, method, other.method, tests[setting.spec, method, against]))
    return found


def _without(pairs: Sequence[_Pair]) -> str:
    """Name the head that the matrix was taken from: for heads that compare directions it is no plain one."""
    return "the plain head" if all(pair.other.head == "plain" for pair in pairs) else "the head without the matrix"


def _control(pairs: Sequence[_Pair]) -> str:
    """Likewise their controls."""
    return "the control, a plain head with the same radius," if _scaled(pairs) else "the control"


def _scaled(pairs: Sequence[_Pair]) -> bool:
    """Whether all of these are comparisons with a control that differs from plain in its radius."""
    return all(pair.other.head == "scaled" for pair in pairs)


def _is_own_control(pair: _Pair) -> bool:
    """Whether the head that the matrix was taken from differs in nothing else: `cosine` for `cosine_maxsep`."""
    return pair.other == pair.method.control and pair.other.head == "cosine"


def _missing(plain: Sequence[_Pair]) -> str:
    """Name the controls that heads should have beside the plain one."""
    wanted = dict.fromkeys(pair.method.control.head for pair in plain if pair.method.control != pair.method.plain)
    return " or ".join("scaled, at the same radius" if head == "scaled" else head for head in wanted)


def _chosen_headline(settings: Sequence[Setting], plain: Sequence[_Pair], control: Sequence[_Pair]) -> str:
    """After a search, and with nothing else on the page, the comparison at the chosen radius is the one that counts."""
    radius = settings[0].focus
    pairs = [pair for pair in (plain if radius == 1 else control) if pair.method.radius == radius]
    if len(settings) != 1 or len(pairs) != 1:
        return ""
    comparison = pairs[0].comparison
    other = "the plain head" if radius == 1 else "a plain head scaled alike"
    if comparison.verdict == "identical":
        return f"At its chosen radius of {radius:g} the matrix equals {other}"
    start = f"At its chosen radius of {radius:g} the matrix is {rounded(abs(comparison.difference), scale=100)} points "
    start += f"{'ahead of' if comparison.difference > 0 else 'behind'} {other}"
    if comparison.passes and not comparison.holds:
        return f"{start}: more than seed noise, but not after correction"
    ends = {"noise": "no more than seed noise", "more than noise": "more than seed noise"}
    return f"{start}: {ends.get(comparison.verdict, comparison.verdict)}"


def _at_chosen(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Where a radius was chosen on held-out data, a headline speaks of that radius and not of those passed over."""

    def counts(pair: _Pair) -> bool:
        focus = pair.setting.focus
        return focus is None or pair.method.radius == focus or Method("maxsep", focus) not in pair.setting.entries

    return list(filter(counts, pairs))


def _headline(plain: Sequence[_Pair], control: Sequence[_Pair]) -> str:
    tested, controlled = [p for p in plain if p.tested], [p for p in control if p.tested]
    if not tested and not controlled:
        same = all(pair.comparison.verdict == "identical" for pair in [*plain, *control])
        return "The same accuracy in every run" if same else "Too few seeds to tell a gain from noise"
    beyond, below = [p for p in controlled if p.won], [p for p in controlled if p.lost]
    won, lost = [p for p in tested if p.won], [p for p in tested if p.lost]
    if beyond and below:
        return (
            f"Against its control the matrix wins {len(beyond)} and loses {len(below)} of {_of(controlled)}"
            f"{_corrected([*beyond, *below])}"
        )
    if beyond:
        what = "gains beyond its radius" if _scaled(controlled) else "gains over its control"
        return f"The matrix {what} in {len(beyond)} of {_of(controlled)}{_corrected(beyond)}"
    if won and lost:
        return (
            f"Mixed: {len(won)} of {_of(tested)} {'gains' if len(won) == 1 else 'gain'} over {_without(tested)}, "
            f"{len(lost)} {'loses' if len(lost) == 1 else 'lose'} to it{_corrected([*won, *lost])}"
        )
    if below and not won:
        return f"The matrix loses to its control in {len(below)} of {_of(controlled)}{_corrected(below)}"
    if won or lost:
        return _over_plain(won or lost, tested, controlled)
    return f"The matrix adds nothing that {min(pair.comparison.n for pair in [*tested, *controlled])} seeds can show"


def _over_plain(apart: Sequence[_Pair], tested: Sequence[_Pair], controlled: Sequence[_Pair]) -> str:
    """Tell gains or losses, of the matrix where the plain head is its control, else of whatever differs from it."""
    gained = apart[0].won
    over, own = ("over" if gained else "to"), [pair for pair in apart if pair.other == pair.method.control]
    verb = f"The matrix {'gains' if gained else 'loses'}" if own else "Gains" if gained else "Losses"
    told = f"{verb} {over} {_without(tested)} in {len(apart)} of {_of(tested)}{_corrected(apart)}"
    if len(own) == len(apart):
        return told
    if below := [pair for pair in controlled if pair.lost]:
        return f"{told}, but losses to the control in {len(below)} of {_of(controlled)}{_corrected(below)}"
    none = f"none {over} the control{' at the same radius' if _scaled(controlled) else ''}"
    return f"{told}, {none if controlled else _NO_CONTROL}"


def _of(pairs: Sequence[_Pair]) -> str:
    return f"{len(pairs)} tested comparison{_s(pairs)}"


def _corrected(pairs: Sequence[_Pair]) -> str:
    """Say how many verdicts are left after correction for the number of tests; nothing if all are."""
    kept = sum(pair.comparison.holds for pair in pairs)
    return "" if kept == len(pairs) else f" ({kept or 'none'} after correction)"


def _count(name: str, pairs: Sequence[_Pair]) -> str:
    """Count verdicts in a sentence, leaving out what did not occur."""
    tested = [pair for pair in pairs if pair.tested]
    won, lost = [pair for pair in tested if pair.won], [pair for pair in tested if pair.lost]
    apart = len(tested) - len(won) - len(lost)
    words = [f"{len(won)} better by more than seed noise{_corrected(won)}"] if won else []
    words += [f"{len(lost)} worse by more than seed noise{_corrected(lost)}"] if lost else []
    words += [f"{apart} not told apart"] if apart else []
    same = sum(pair.comparison.verdict == "identical" for pair in pairs)
    missing = len(pairs) - len(tested) - same
    words += [f"{same} equal in every seed"] if same else []
    words += [f"{missing} not testable (fewer than {MIN_SEEDS} common seeds)"] if missing else []
    return f"Against {name} {len(pairs)} comparison{_s(pairs)}: {', '.join(words)}." if pairs else ""


def _details(plain: Sequence[_Pair], control: Sequence[_Pair]) -> list[str]:
    if len(plain) > _FEW:
        return [_range(plain, _without), *([_range(control, _control)] if control else [])]
    controls = {(pair.setting.spec, pair.method): pair for pair in control}
    lines = []
    for pair in plain:
        line = f"{pair.where}: {_points(pair)} over {_name(pair)}"
        if other := controls.get((pair.setting.spec, pair.method)):
            line += f"; {_points(other)} over {_name(other)}"
        lines.append(line + ".")
    return lines


def _name(pair: _Pair) -> str:
    """What a head with the matrix is compared with."""
    return pair.setting.name(pair.other) + (" at the same radius" if pair.other.head == "scaled" else "")


def _points(pair: _Pair) -> str:
    found = pair.comparison
    reason = f": {found.reason}" if found.verdict == "not testable" else ""
    return f"{signed(found.difference, scale=100)} points ({verdict_text(found)}{reason})"


def _range(pairs: Sequence[_Pair], among: Callable[[Sequence[_Pair]], str]) -> str:
    """Name the smallest and the largest difference, over the one head that all are compared with or what it is."""
    names = {_name(pair) for pair in pairs}
    name = names.pop() if len(names) == 1 else among(pairs)
    ordered = sorted(pairs, key=lambda pair: pair.comparison.difference)
    low, high = ordered[0], ordered[-1]
    ends = [f"{signed(p.comparison.difference, scale=100)} points ({p.where}; {_seeds(p)})" for p in (low, high)]
    return f"Over {name} the differences range from {' to '.join(ends)}."


def _seeds(pair: _Pair) -> str:
    return f"{pair.comparison.n} seed{'' if pair.comparison.n == 1 else 's'}"


def _interpretation(plain: Sequence[_Pair], control: Sequence[_Pair]) -> str:
    won = {(pair.setting.spec, pair.method): pair for pair in plain if pair.won}
    tested = {(p.setting.spec, p.method): p for p in control if p.tested}
    both = [tested[key] for key in won if key in tested]
    if not both:
        return ""
    base, alike = _without(list(won.values())), _scaled(both)
    same, has = (" at the same radius", "the radius") if alike else ("", "what the control has, too")
    alone = "the radius alone" if alike else "what the control has"
    beyond = [pair for pair in both if pair.won]
    if not beyond:
        return (
            f"Where the matrix beat {base} ({len(both)} comparison{_s(both)} with a control"
            f"{', before correction' if _corrected(list(won.values())) else ''}), the control{same} was "
            f"not beaten beyond noise: these runs give the credit to {has}. They do not prove that the matrix adds "
            "nothing."
        )
    kept = sum(pair.comparison.holds for pair in beyond)
    if not kept:
        return (
            f"The matrix beat {base} in {len(both)} comparison{_s(both)} with a control, and in {len(beyond)} "
            "of them the control too, but not after correction: these runs do not decide whether the matrix adds to "
            f"what its {'radius' if alike else 'control'} does."
        )
    if len(both) == kept == 1:
        return f"The gain over {base} is also a gain over its control: {alone} does not explain it."
    return (
        f"The matrix beat {base} in {len(both)} comparison{_s(both)} with a control, and in {len(beyond)} of "
        f"them the control too{_corrected(beyond)}: there {alone} does not explain the difference."
    )


def _multiplicity(tests: Family) -> str:
    """Count every p-value of the accuracy tables, whatever heads it compares."""
    made = [comparison for comparison in tests.values() if comparison.p is not None]
    if not made:
        return ""
    if len(made) == 1:
        return f"The accuracy tables show one paired two-sided t-test, at the level {LEVEL:g}."
    passed, kept = sum(c.passes for c in made), sum(c.holds for c in made)
    after = (
        f"; {f'{kept} still' if kept else 'none'} {'do' if kept > 1 else 'does'} after Holm's correction"
        if passed
        else ""
    )
    return (
        f"The accuracy tables show {len(made)} paired two-sided t-tests at the level {LEVEL:g}, those of the other "
        f"heads included; if nothing differed, about {LEVEL * len(made):.1f} would pass by chance. {passed or 'None'} "
        f"passed{after}. With few seeds the test sees large differences only."
    )


def _chosen(setting: Setting) -> str:
    if not setting.chosen:
        return ""
    words = " and ".join(f"{radius:g} for {head}" for head, radius in setting.chosen.items())
    text = f"{setting.label}: held-out training data chose a radius of {words}; the test set played no part in it."
    reached = []
    for head, radius in setting.chosen.items():
        method = Method("plain", 1.0) if head == "scaled" and radius == 1 else Method(head, radius)
        if method in setting.entries and (summary := setting.entries[method].summary()):
            reached.append(f"{head} {rounded(summary.mean, scale=100)} %")
    return text + (f" At the chosen radius the test accuracy is {', '.join(reached)}." if reached else "")


def _s(items: Sequence[object]) -> str:
    return "" if len(items) == 1 else "s"
