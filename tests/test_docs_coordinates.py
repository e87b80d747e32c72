"""What the page of results says about fixed class coordinates is in the records."""

import runpy
import statistics
from pathlib import Path

from maxsep.lab.report.statistics import compare, holm

ROOT = Path(__file__).parent.parent


def test_the_tables_are_those_of_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "write_coordinates.py"))
    assert script["rewritten"]() == (ROOT / "docs/results.md").read_text(), "run: python docs/write_coordinates.py"


def test_what_the_page_says_about_models_trained_apart_is_in_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "write_coordinates.py"))
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    names = list(script["APART_ROWS"])

    def recall(name, part="unseen", which="across"):
        return [script["recalls"](split, *script["APART_ROWS"][name], part, which) for split in (0, 1)]

    def points(name, **of):
        return [100 * statistics.mean(found.values()) for found in recall(name, **of)]

    assert all(len(found) == 5 for name in names for found in recall(name))
    fixed = [name for name in names if name.endswith(", features") and not name.startswith("plain")]
    lost = {
        name: [a - b for a, b in zip(points(name, part="known", which="self"), points(name, part="known"), strict=True)]
        for name in fixed
    }
    cosine = [value for name in fixed if "cosine" in name for value in lost[name]]
    every = [value for values in lost.values() for value in values]
    assert f"they find {min(every):.1f} to {max(every):.1f} points less than within one model" in text
    assert f"by cosine {min(cosine):.1f} to {max(cosine):.1f}." in text
    pairs = [(name, name.replace("etf", "orthonormal")) for name in names if name.startswith("`etf`")]
    found = [compare(a, b).p for ours, control in pairs for a, b in zip(recall(ours), recall(control), strict=True)]
    assert len(found) == 8
    assert f"is a difference across models more than noise (p of {min(found):.2f} or more)" in text
    logits = recall("plain head, logits less their mean")
    over = {
        kind: [compare(a, b) for a, b in zip(recall(f"`etf` by cosine, {kind}"), logits, strict=True)]
        for kind in ("features", "logits")
    }
    told = {
        kind: " and ".join(f"{100 * c.difference:+.1f}".replace("-", "\N{MINUS SIGN}") for c in over[kind])
        for kind in over
    }
    assert f"beside a plain head's logits by {told['features']} points in the two splits" in text
    assert (
        f"which are its coordinates, by {told['logits']}. The third of these has p = {over['logits'][0].p:.3f}" in text
    )
    assert min(holm([c.p for kind in over for c in over[kind]])) > 0.05, "none is more than noise"
    aligned = points("plain head, features aligned")
    assert f"{aligned[0]:.1f} and {aligned[1]:.1f} percent with a plain one" in text
    for split in (0, 1):
        others = [points(name)[split] for name in names if "aligned" not in name]
        assert min(points(name)[split] for name in names if "aligned" in name) > max(others)


def test_what_the_page_says_about_clients_that_see_different_classes_is_in_the_records():
    script = runpy.run_path(str(ROOT / "docs" / "write_coordinates.py"))
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    setting, rows = script["clients_setting"](), script["FEDERATED_ROWS"]
    assert (setting.spec.clients, setting.spec.concentration, setting.spec.local_epochs) == (20, 0.1, 5)
    assert {tuple(sorted(entry.records)) for entry in setting.entries.values()} == {(0, 1, 2, 3, 4)}
    assert set(setting.entries) == set(rows.values())

    def points(name, after):
        return 100 * statistics.mean(script["after_round"](setting.entries[rows[name]], after).values())

    tests = script["gains"](setting, 10)
    made = [found for pair in tests.values() for found in pair if found is not None]
    assert len(made) == 10
    assert not any(found.holds for found in made)
    etf, cosine = tests[rows["`etf`"]], tests[rows["`etf` by cosine"]]
    right = tests[rows["`orthonormal` by cosine (control)"]]
    assert [found for found in made if found.passes] == [right[0], etf[0], cosine[0]]
    assert f"`etf` ({100 * etf[0].difference:+.2f} and, by cosine, {100 * cosine[0].difference:+.2f}) and" in text
    assert f"`orthonormal` by cosine ({100 * right[0].difference:+.2f})" in text
    last = [points(name, 40) for name in rows]
    assert f"all heads are between {min(last):.1f} and {max(last):.1f} percent" in text
    fixed = [points(name, 5) - points("plain head", 5) for name in rows if "etf" in name or "orthonormal" in name]
    assert f"by {min(fixed):.1f} to {max(fixed):.1f} points after round 5" in text
    small = points("plain head, times 0.3 (control)", 5), points("`maxsep`, radius 0.3", 5)
    gained = [f"{value - points('plain head', 5):.1f}" for value in small]
    assert f"A plain head times 0.3 has {gained[0]} more, and `maxsep` at radius 0.3 {gained[1]}." in text
    spread = 100 * statistics.stdev(script["after_round"](setting.entries[rows["plain head"]], 5).values())
    assert f"The plain head varies by {spread:.1f} points" in text
    assert not any(found.holds for pair in script["gains"](setting, 5).values() for found in pair if found is not None)
    above = f"`etf` is above `orthonormal` by {100 * etf[1].difference:.2f} points after round 10 and, by cosine, by"
    assert f"{above} {100 * cosine[1].difference:.2f}, which is noise." in text
    one, small = tests[rows["`maxsep`"]], tests[rows["`maxsep`, radius 0.3"]]
    assert f"is below the plain head there by {-100 * one[0].difference:.2f}, which is noise too" in text
    assert f"at 0.3 it is {-100 * small[1].difference:.2f} below its control" in text
