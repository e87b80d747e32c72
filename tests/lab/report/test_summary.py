"""The first screen: coverage, gains, the one pooled number and the headline."""

import pytest

from maxsep.lab import recipes
from maxsep.lab.reference import decisive_metric
from maxsep.lab.report import sections, summary
from maxsep.lab.report.controls import Method
from maxsep.lab.report.statistics import MeanInterval
from maxsep.lab.spec import RunSpec

TABLE1 = "dataset=cifar10,imbalance=0.01,network=resnet34"


def runs_of(name, only, seeds=3):
    return recipes.get(name).specs(seeds, only=only)


def test_the_plan_counts_its_runs_and_those_that_are_finished(tmp_path, run_folder, settings):
    specs = recipes.get("table1").specs(1, only="imbalance=0.02,network=resnet34", precision="bf16-mixed")
    for spec in specs:  # of CIFAR-100 without the official order, which does not count
        run_folder(tmp_path, spec)
    first, *others = summary.plan_table(settings(tmp_path)).rows
    assert [cell.value for cell in first.cells[1:]] == [132, 3, 129]
    assert all(row.cells[1].value == row.cells[3].value > 0 for row in others)


def test_earlier_draws_are_measured_and_not_counted(recorded):
    ldam = [number for number in summary.coverage(recorded) if number.cell.table == "LDAM and MiSLAS"]
    assert sum(number.measured for number in ldam) == 8
    assert all((number.repetitions, number.word) == (0, "") for number in ldam)


def test_one_seed_has_no_word_and_other_lengths_do_not_count(tmp_path, run_folder, settings):
    spec = runs_of("table1", TABLE1, 1)[0]
    run_folder(tmp_path / "a", spec)
    (number,) = (n for n in summary.coverage(settings(tmp_path / "a")) if n.repetitions and n.cell.table == "Table 1")
    assert (number.repetitions, number.word, number.reached) == (1, "", None)
    run_folder(tmp_path / "b", spec.replace(epochs=5))
    assert not any(number.measured for number in summary.coverage(settings(tmp_path / "b")))


@pytest.mark.parametrize(("plain", "word"), [(0.565, "agrees"), (0.60, "above"), (0.50, "below")])
def test_a_cell_of_table_1_is_compared_with_the_five_runs(tmp_path, run_folder, settings, plain, word):
    for spec in runs_of("table1", TABLE1):
        if spec.head == "plain":
            run_folder(tmp_path, spec, top1=plain + 0.001 * (spec.seed - 124))
    (number,) = (n for n in summary.coverage(settings(tmp_path)) if n.measured and n.cell.table == "Table 1")
    assert (number.cell.value, number.word, number.reached) == (56.98, word, word != "below")


def test_a_gain_is_reached_if_the_papers_lies_in_the_interval_or_below(tmp_path, run_folder, settings):
    for spec in runs_of("table1", TABLE1):
        run_folder(tmp_path, spec, top1=0.5 + (0.2 if spec.head == "maxsep" else 0.001 * (spec.seed - 124)))
    gain, fisher = summary.gains(settings(tmp_path))
    assert gain.paper == pytest.approx(0.123), "68.80 - 56.50, the means over five runs"
    assert (gain.reached, gain.counted, gain.label) == (True, True, "CIFAR-10 0.01, ResNet")
    assert (fisher.paper, fisher.scale, fisher.reached) == (pytest.approx(0.324 - 0.4141), 1, True), "lower is better"


def test_the_pooled_number_needs_all_twelve_differences(tmp_path, run_folder, settings):
    specs = runs_of("table1", "network=resnet34,imbalance=0.01|0.02")
    specs = [s.replace(data_order="official") if s.dataset == "cifar100" else s for s in specs]
    wanted = [spec for spec in specs if spec.head in ("maxsep", "control")]
    assert len(wanted) == 24
    for spec in wanted[1:]:
        run_folder(tmp_path, spec, top1=0.5 + 0.01 * (spec.head == "maxsep") + 0.0001 * (spec.seed - 123))
    partial = summary.pooled(settings(tmp_path))
    assert isinstance(partial, list)
    assert len(partial) == 11
    run_folder(tmp_path, wanted[0], top1=0.5 + 0.01 * (wanted[0].head == "maxsep"))
    found = summary.pooled(settings(tmp_path))
    assert isinstance(found, MeanInterval)
    assert (found.n, found.mean) == (12, pytest.approx(0.01))


@pytest.mark.parametrize(
    ("shift", "containing"), [((0.05, 0.051, 0.049), 0), ((-0.05, -0.051, -0.049), 0), ((0.01, -0.01, 0.002), 1)]
)
def test_the_headline_answers(tmp_path, run_folder, settings, shift, containing):
    for seed in range(3):
        run_folder(tmp_path, RunSpec(head="plain", seed=seed), top1=0.4 + 0.001 * seed)
        run_folder(tmp_path, RunSpec(head="scaled", radius=0.1, seed=seed), top1=0.5)
        run_folder(tmp_path, RunSpec(head="maxsep", radius=0.1, seed=seed), top1=0.5 + shift[seed])
        assert ("no verdict" in summary.headline(settings(tmp_path))) == (seed < 2)
    headline = summary.headline(settings(tmp_path))
    assert f"{containing} of 1 interval" in headline
    assert "+9.9 points" in headline
    assert summary.sentences(settings(tmp_path), [], []) == [summary.THEOREM], "not in the paper"


def test_unequal_classes_are_compared_by_the_mean_over_them(tmp_path, run_folder, settings):
    counts = [100, 10]
    for seed in range(3):
        for head, radius, mean in (("plain", 1, 0.6), ("scaled", 0.1, 0.7), ("maxsep", 0.1, 0.5)):
            numbers = {"top1": 0.8, "balanced": mean + 0.001 * seed * (head != "scaled"), "best_top1": 0.8, "ece": 0.1}
            spec = RunSpec(head=head, radius=radius, imbalance=0.1, seed=seed)
            run_folder(tmp_path, spec, metrics=numbers | {"class_counts": counts})
    (setting,) = settings(tmp_path)
    assert setting.metric == decisive_metric(counts) == "balanced"
    assert "+9.9 points" in summary.headline([setting])
    (table,) = sections.accuracy("other", [setting]).tables
    assert table.columns[1] == "mean over classes, %"
    assert table.rows[-1].cells[2].value == pytest.approx(-10.0)


def test_runs_that_were_trained_again_are_named(recorded):
    assert summary.retrained(recorded) == [summary.RETRAINED]
    assert summary.retrained(recorded[-1:]) == []


def test_the_drawn_radius_is_never_the_best_on_test_data(tmp_path, run_folder, settings):
    for radius, top1 in ((3.0, 0.9), (1.0, 0.5), (0.1, 0.6)):
        run_folder(tmp_path, RunSpec(head="maxsep", radius=radius), top1=top1)
    (setting,) = settings(tmp_path)
    assert sections.main_method(setting) == Method("maxsep")
