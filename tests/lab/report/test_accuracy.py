from maxsep.lab import recipes
from maxsep.lab.report.accuracy import accuracy_tables, results
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of


def build(folder):
    settings = settings_of(collect(folder).records)
    return accuracy_tables(settings), results(settings)


def row(table, head, radius):
    return next(r.cells for r in table.rows if (r.cells[0].text, r.cells[1].text) == (head, radius))


def test_table_one_with_the_papers_numbers_and_its_contradictions(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("table1").specs(only="dataset=cifar10,imbalance=1|0.02"))
    (resnet, convnet), _ = build(tmp_path)
    assert (resnet.title, convnet.title) == ("CIFAR-10, ResNet", "CIFAR-10, ConvNet")
    assert [r.group for r in resnet.rows if r.group] == ["balanced", "imbalance 0.02"]
    ours = row(resnet, "maxsep", "0.1")
    assert ours[2].text == "95.09"
    assert ours[2].detail == "5 runs: 96.12 ± 0.19"
    assert "more than five standard deviations" in ours[2].notes[0]
    assert ours[3].detail == "3 seeds"
    assert row(resnet, "scaled", "0.1")[2].text == "\N{EN DASH}", "the paper has no control"
    assert any("55.25 in Table 1 but 56.98" in note for note in convnet.notes)


def test_at_radius_one_the_control_is_the_plain_run(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("table1").specs(only="dataset=cifar100,imbalance=1,network=convnet"))
    (table,), _ = build(tmp_path)
    assert [(r.cells[0].text, r.cells[1].text) for r in table.rows] == [
        ("plain", "1"),
        ("scaled", "1"),
        ("maxsep", "1"),
        ("scaled", "0.1"),
        ("maxsep", "0.1"),
    ]
    assert row(table, "scaled", "1")[3].text == "= plain"
    assert row(table, "maxsep", "1")[5].text == "= plain"
    assert row(table, "maxsep", "0.1")[5].detail.startswith(("noise", "more than noise"))


def test_fewer_than_three_seeds_are_not_testable(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("table1").specs(2, only="dataset=cifar10,imbalance=1,network=resnet34"))
    (table,), found = build(tmp_path)
    cells = row(table, "maxsep", "0.1")
    assert cells[4].detail == cells[5].detail == "not testable"
    assert all(r["gain_over_plain"] is None or r["gain_over_plain"]["p"] is None for r in found)


def test_short_runs_are_called_another_experiment(tmp_path, run_folders):
    only = "dataset=cifar10,imbalance=1,network=resnet34"
    run_folders(tmp_path, recipes.get("table1").specs(1, epochs=5, max_train=64, only=only))
    (table,), _ = build(tmp_path)
    assert any(note.startswith("The paper trains 200 epochs, these runs 5") for note in table.notes)
    assert any("a part of the data only" in note for note in table.notes)


def test_a_table_without_the_paper_has_no_column_for_it(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("demo").specs(1, only="validation=0"))
    (table,), _ = build(tmp_path)
    assert "paper, %" not in table.columns


def test_results_hold_every_seed(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("prototypes").specs(only="dataset=cifar10,imbalance=1"))
    _, found = build(tmp_path)
    hpn = next(r for r in found if r["loss"] == "squared_cosine")
    assert hpn["paper"] == {"prototypes": 93.27}
    assert sorted(hpn["top1"]) == [123, 124, 125]
    maxsep = next(r for r in found if r["head"] == "maxsep")
    assert maxsep["paper"]["fisher"] == 0.0555
    assert maxsep["paper"]["error_bar"] == {"mean": 96.12, "std": 0.19}
    assert maxsep["gain_over_scaled"]["seeds"] == 3
