"""Runs with clients: a section of their own, compared by the round, which leaves all others as they were."""

import json

import pytest

from maxsep.lab import recipes
from maxsep.lab.report import render
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import Method, settings_of
from maxsep.lab.report.federated import after_round, control, federated_section
from maxsep.lab.report.labels import differences
from maxsep.lab.spec import RunSpec

START = {"plain": 0.70, "scaled": 0.72, "maxsep": 0.73, "orthonormal": 0.80, "etf": 0.81}
SPEC = next(iter(recipes.get("federated").specs(1)))


def write_rounds(run_folder, runs, spec):
    """A run whose accuracy rises evenly from the head's own after round 10 to one for all after the last."""
    folder = run_folder(runs, spec, top1=0.95)
    noise = 0.001 * (spec.seed**2 % 5) * (1 + len(spec.head) + len(spec.head_options))
    first = START[spec.head] + noise
    lines = [
        {"epoch": epoch, "train_loss": 1.0, "seconds": 0.1, "top1": first + (0.95 - first) * max(0, epoch - 9) / 30}
        for epoch in range(spec.epochs)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def runs(tmp_path, run_folder):
    for spec in recipes.get("federated").specs():
        write_rounds(run_folder, tmp_path / "federated", spec)
    return tmp_path / "federated"


def test_the_recipe_has_a_control_for_every_head_with_fixed_vectors():
    arms = {Method.of(spec) for spec in recipes.get("federated").specs(1)}
    assert len(arms) == 8
    for method in arms:
        if method.head in ("etf", "maxsep"):
            assert control(method) in arms
        else:
            assert control(method) is None
    assert {(s.clients, s.concentration, s.local_epochs, s.epochs) for s in recipes.get("federated").specs()} == {
        (20, 0.1, 5, 40)
    }


def test_rounds_are_counted_from_one(runs):
    (setting,) = settings_of(collect(runs).records)
    entry = setting.entries[Method("plain", 1.0)]
    assert after_round(entry, 10)[0] == 0.70
    assert after_round(entry, 40)[0] == pytest.approx(0.95)
    assert after_round(entry, 41) == after_round(None, 10) == {}


def test_heads_are_compared_after_round_ten_with_plain_and_with_their_control(runs):
    (table,) = federated_section(settings_of(collect(runs).records)).tables
    assert table.columns[1:5] == ("round 5", "round 10", "round 20", "round 40")
    assert table.title == "Digits, MLP, balanced, 20 clients, Dirichlet 0.1"
    assert table.rows[0].group == "5 local epochs a round, 40 rounds, 5 seeds"
    rows = {row.cells[0].text: row.cells for row in table.rows}
    assert len(rows) == 8
    assert rows["plain"][2].text == "71.20"
    assert [cell.text for cell in rows["plain"][5:]] == ["\N{EN DASH}"] * 2
    assert rows["maxsep"][6].text == "= plain"
    for name, reference in (
        ("etf (rotation 0)", "orthonormal"),
        ("etf (by cosine, rotation 0, temperature 0.1)", "orthonormal (by cosine, temperature 0.1)"),
        ("maxsep, radius 0.3", "scaled, radius 0.3"),
    ):
        ours, theirs, plain = (rows[head][2].value for head in (name, reference, "plain"))
        assert rows[name][5].value == pytest.approx(ours - plain, abs=1e-6)
        assert rows[name][6].value == pytest.approx(ours - theirs, abs=1e-6)
        assert "p " in rows[name][5].detail
    # 7 tests against plain, 3 against controls, all corrected for each other
    assert any("corrected" in row[5].detail for row in rows.values())


def test_a_short_run_is_compared_after_its_last_round(tmp_path, run_folder):
    for head in ("plain", "etf"):
        write_rounds(run_folder, tmp_path, SPEC.replace(head=head, head_options=(), epochs=4, local_epochs=1))
    (table,) = federated_section(settings_of(collect(tmp_path).records)).tables
    assert table.columns[1:2] == ("round 4",)
    assert "after round 4," in table.caption
    assert table.rows[0].group == "1 local epoch a round, 4 rounds, 1 seed"
    assert [row.cells[3].text for row in table.rows] == ["\N{EN DASH}"] * 2  # the control is not there


def test_rounds_without_an_evaluation_are_empty(tmp_path, run_folder):
    run_folder(tmp_path, SPEC)  # evaluated in every fourth epoch
    (table,) = federated_section(settings_of(collect(tmp_path).records)).tables
    assert table.rows[0].cells[1].text == "\N{EN DASH}"


def test_a_report_of_such_runs_alone(runs, tmp_path):
    page = render(runs, tmp_path).read_text()
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["finding"]["headline"] == "Clients that see different classes"
    assert "20 clients, Dirichlet 0.1, accuracy after round 10 and 40: plain 71.20 and 95.00 %" in page
    assert '<section id="federated">' in page
    assert '<section id="accuracy">' not in page
    assert dict(told["facts"])["training images seen"] == "40.0 million"  # 40 runs, 5,000 images, 200 times
    assert told["commands"][0] == "maxsep reproduce federated --data DIR --precision 32-true"


def test_other_runs_are_told_as_if_there_were_none(runs, tmp_path, run_folder):
    both, alone = tmp_path / "both", tmp_path / "alone"
    others = tmp_path / "others"
    for seed in range(3):
        for head in ("plain", "maxsep"):
            run_folder(others, RunSpec(head=head, seed=seed, batch_size=64))
    render([others, runs], both)
    render(others, alone)
    first, second = (json.loads((folder / "report.json").read_text()) for folder in (both, alone))
    assert second["tables"]
    assert [table for table in first["tables"] if not table["id"].startswith("federated")] == second["tables"]
    assert first["figures"] == second["figures"]
    assert first["finding"]["headline"] == second["finding"]["headline"]
    assert first["finding"]["sentences"][:-1] == second["finding"]["sentences"]


def test_clients_are_said_and_compared_with_clients_only():
    usual, few = RunSpec(epochs=7), RunSpec(clients=1, local_epochs=2)
    words = differences([usual, few, SPEC])
    assert words[usual] == ""
    assert words[few].startswith("1 client, Dirichlet 0.1, ")
    assert words[SPEC].startswith("20 clients, Dirichlet 0.1, ")
    assert "local epochs 2" in words[few]
    assert "40 epochs" in words[SPEC]
