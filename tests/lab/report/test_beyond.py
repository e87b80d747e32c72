"""The table beyond the paper: its rows, the bar beside them, and the search with its choice."""

from maxsep.lab import recipes
from maxsep.lab.recipes import beyond
from maxsep.lab.report import render
from maxsep.lab.report.beyond import beyond_section, search_section
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import distinctions, settings_of

SMALL = "dataset=cifar10,network=resnet32"


def settings(folder):
    return settings_of(collect(folder).records)


def cells(row):
    return [cell.text for cell in row.cells]


def test_rows_name_all_that_a_reader_needs_and_the_published_numbers_stand_above_them(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("beyond").specs(3, only=f"{SMALL},augmentation={beyond.WEAK}"))
    (table,) = beyond_section(settings(tmp_path)).tables
    assert [row.cells[0].text for row in table.rows[:4]] == [
        *("published: cross-entropy", "published: LDAM-DRW", "published: logit adjustment", "published: BCL"),
    ]
    assert table.rows[2].cells[1].value == 77.7
    assert table.rows[0].group == (
        "CIFAR-10, ResNet-32 (0.01 million parameters), imbalance 0.01, 200 epochs, subset seed 0"
    )
    own = next(row for row in table.rows if row.cells[0].text == "plain (logit adjusted)")
    assert cells(own)[2:] == ["\N{EN DASH}", "weak (crop, flip)"]
    assert own.cells[3].detail == "weight decay 0.0005"
    assert own.cells[1].detail == "3 seeds"
    strong = [row for row in table.rows if row.cells[1].tone == "strong"]
    assert len(strong) == 1


def test_the_papers_network_stands_against_the_papers_best(tmp_path, run_folder):
    only = "dataset=cifar100,network=resnet34,imbalance=0.02,head=plain"
    (spec,) = recipes.get("beyond").specs(1, only=only)
    run_folder(tmp_path, spec, top1=0.5)
    (table,) = beyond_section(settings(tmp_path)).tables
    (row,) = table.rows
    assert row.cells[1].tone == "", "one row is the best of nothing"
    assert "is no merit of a head" in table.caption
    assert (row.cells[2].text, row.cells[2].detail) == ("+4.88", "paper: 45.12")


def test_table_1_alone_is_nothing_beyond_the_paper(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("table1").specs(1, only="network=resnet34,imbalance=0.01"))
    assert beyond_section(settings(tmp_path)) is None
    assert search_section(settings(tmp_path)) is None


def test_the_search_shows_its_candidates_and_chooses_only_when_it_is_complete(tmp_path, run_folders, run_folder):
    cell = f"{SMALL},augmentation={beyond.STRONG}"
    specs = recipes.get("beyond_search").specs(only=cell)
    run_folders(tmp_path, specs[1:])
    run_folder(tmp_path, specs[0].replace(head="maxsep"))
    run_folder(tmp_path, specs[0].replace(learning_rate=0.2))  # another experiment: no row
    (table,) = search_section(settings(tmp_path)).tables
    labels = {cells(row)[0] for row in table.rows}
    assert labels == {
        "plain (logit adjusted), weight decay 0.001",
        "plain (logit adjusted), weight decay 0.0005, mixup 0.2",
        "maxsep (logit adjusted), weight decay 0.0005",
    }
    assert not any("chosen" in cells(row) for row in table.rows)
    run_folders(tmp_path, specs[:1])
    (table,) = search_section(settings(tmp_path)).tables
    chosen = [cells(row)[0] for row in table.rows if "chosen" in cells(row)]
    # the made records are equally good: what counts is the recipe's choice
    assert chosen == ["plain (logit adjusted), weight decay 0.0005, mixup 0.2"]
    assert beyond.CHOSEN["cifar10", beyond.STRONG] == {"mixup": 0.2}
    assert table.rows[0].group == "CIFAR-10, strong (AutoAugment, Cutout)"


def test_settings_that_differ_in_augmentation_say_so(tmp_path, run_folders):
    run_folders(tmp_path, recipes.get("beyond").specs(1, only="network=resnet34,dataset=cifar10,head=plain"))
    balanced = recipes.get("table1").specs(1, only="network=resnet34,dataset=cifar10,head=plain,imbalance=1")
    run_folders(tmp_path, balanced)
    labels = set(distinctions(settings(tmp_path)).values())
    assert labels == {"crop and flip", "crop, flip, AutoAugment and cutout", "crop, flip and rotation"}


def test_the_page_has_both_sections(tmp_path, run_folders):
    run_folders(tmp_path / "runs", recipes.get("beyond").specs(1, only=SMALL))
    run_folders(tmp_path / "runs", recipes.get("beyond_search").specs(1, only=SMALL))
    page = render(tmp_path / "runs", tmp_path / "out").read_text()
    assert page.index('<section id="beyond">') < page.index('<section id="search">')
