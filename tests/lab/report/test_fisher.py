from maxsep.lab import recipes
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.fisher import fisher_section
from maxsep.lab.spec import RunSpec

ONLY = "dataset=cifar100,imbalance=0.01,network=resnet34"


def section(folder):
    return fisher_section(settings_of(collect(folder).records))


def test_one_seed_is_one_seed(tmp_path, run_folders):
    table = section(run_folders(tmp_path, recipes.get("table1").specs(1, only=ONLY))).tables[0]
    assert {row.cells[3].detail for row in table.rows} == {"1 seed"}


def test_a_score_far_from_the_papers_carries_a_remark(tmp_path, run_folder):
    for spec in recipes.get("table1").specs(1, only=ONLY):
        score = 1.5082 if spec.head == "plain" else 0.68
        run_folder(tmp_path, spec, metrics={"top1": 0.4, "angular_fisher": score})
    (table,) = section(tmp_path).tables
    (note,) = table.notes
    assert note.startswith("2.1 times the paper's score. ")
    assert [bool(row.cells[3].notes) for row in table.rows] == [True, False]


def test_without_the_papers_numbers_its_column_and_sentence_are_left_out(tmp_path, run_folders):
    found = section(run_folders(tmp_path, recipes.get("demo").specs(1, only="validation=0")))
    assert "paper" not in found.tables[0].columns
    assert "paper" not in found.text[0]


def test_differences_are_corrected_within_the_table(tmp_path, run_folder):
    scores = {"plain": (0.5704, 0.4755, 0.5303), "maxsep": (0.3163, 0.3115, 0.3211)}
    for imbalance in (1.0, 0.5, 0.2, 0.1):
        for head, values in scores.items():
            for seed, value in enumerate(values):
                spec = RunSpec(head=head, radius=1.0 if head == "plain" else 0.1, seed=seed, imbalance=imbalance)
                run_folder(tmp_path, spec, metrics={"top1": 0.5, "angular_fisher": value})
    cells = [row.cells[3] for row in section(tmp_path).tables[0].rows if row.cells[0].text == "maxsep"]
    assert [cell.detail for cell in cells] == ["p = 0.015, corrected 0.060"] * 4
    assert {cell.tone for cell in cells} == {""}


def test_no_scores_no_section(tmp_path, run_folder):
    run_folder(tmp_path, RunSpec(), metrics={"top1": 0.5})
    assert section(tmp_path) is None
