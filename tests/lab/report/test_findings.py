import pytest

from maxsep.lab.recipes import own_data
from maxsep.lab.report.accuracy import accuracy_tables
from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.contest import contest
from maxsep.lab.report.findings import find
from maxsep.lab.spec import RunSpec, options

WIGGLE = (0.0, 0.004, -0.003, 0.001)


def make(folder, run_folder, means, seeds=3, **fields):
    for (head, radius), mean in means.items():
        for seed in range(seeds):
            shift = WIGGLE[(seed + ord(head[0])) % 4]
            spec = RunSpec(head=head, radius=radius, seed=seed, **fields)
            run_folder(folder, spec, top1=mean + 0.02 * seed + shift)
    return settings_of(collect(folder).records)


PLAIN, UNIT, SCALED, MAXSEP = ("plain", 1.0), ("maxsep", 1.0), ("scaled", 0.1), ("maxsep", 0.1)


@pytest.mark.parametrize(
    ("means", "headline"),
    [
        (
            {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6},
            "Gains over the plain head in 1 of 1 tested comparison, none over the control",
        ),
        ({PLAIN: 0.5, SCALED: 0.55, MAXSEP: 0.65}, "The matrix gains beyond its radius in 1 of 1 tested comparison"),
        (
            {PLAIN: 0.6, SCALED: 0.5, MAXSEP: 0.5},
            "Losses to the plain head in 1 of 1 tested comparison, none to the control at the same radius",
        ),
        ({PLAIN: 0.6, SCALED: 0.7, MAXSEP: 0.6}, "The matrix loses to its control in 1 of 1 tested comparison"),
        (
            {PLAIN: 0.5, SCALED: 0.7, MAXSEP: 0.6},
            "Gains over the plain head in 1 of 1 tested comparison, but losses to the control in 1 of 1 tested",
        ),
        ({PLAIN: 0.6, UNIT: 0.5}, "The matrix loses to the plain head in 1 of 1 tested comparison"),
        ({PLAIN: 0.5, UNIT: 0.6}, "The matrix gains over the plain head in 1 of 1 tested comparison"),
        (
            {PLAIN: 0.6, UNIT: 0.5, SCALED: 0.5, MAXSEP: 0.5},
            "The matrix loses to the plain head in 2 of 2 tested comparisons, none to the control at the same radius",
        ),
        ({PLAIN: 0.6, SCALED: 0.6, MAXSEP: 0.6}, "The matrix adds nothing that 3 seeds can show"),
        (
            {PLAIN: 0.5, MAXSEP: 0.6},
            "Gains over the plain head in 1 of 1 tested comparison, the control is still missing",
        ),
        ({PLAIN: 0.5}, "Nothing to compare yet"),
    ],
)
def test_the_headline_follows_the_numbers(tmp_path, run_folder, means, headline):
    assert find(make(tmp_path, run_folder, means)).headline.startswith(headline)


def test_credit_goes_to_the_radius_where_the_control_does_as_well(tmp_path, run_folder):
    found = find(make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6}))
    text = " ".join(found.sentences)
    assert "these runs give the credit to the radius" in text
    assert "do not prove that the matrix adds nothing" in text
    assert "The accuracy tables show 3 paired two-sided t-tests" in text
    assert "Holm" in text


def test_without_seeds_nothing_is_claimed(tmp_path, run_folder):
    found = find(make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.9}, seeds=2))
    assert found.headline == "Too few seeds to tell a gain from noise"
    text = " ".join(found.sentences)
    assert "p =" not in text
    assert "p <" not in text
    assert "not testable: 2 common seeds, at least 3 needed" in text


def test_a_control_that_cannot_be_tested_is_not_called_equal(tmp_path, run_folder):
    make(tmp_path, run_folder, {PLAIN: 0.5, MAXSEP: 0.7})
    settings = make(tmp_path, run_folder, {SCALED: 0.5}, seeds=2)
    assert find(settings).headline.endswith("the control is still missing or has too few seeds")


def test_a_gain_that_correction_takes_away_is_not_the_headline(tmp_path, run_folder):
    for imbalance in (0.5, 0.2, 0.1, 0.05, 0.02):
        means = {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.511 if imbalance == 0.5 else 0.5}
        settings = make(tmp_path, run_folder, means, imbalance=imbalance)
    headline = "The matrix gains beyond its radius in 1 of 5 tested comparisons (none after correction)"
    assert find(settings).headline == headline
    big = make(tmp_path / "b", run_folder, {PLAIN: 0.3, SCALED: 0.3, MAXSEP: 0.7})
    big += make(tmp_path / "c", run_folder, {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.5}, imbalance=0.1)
    assert find(big).headline == "The matrix gains beyond its radius in 1 of 2 tested comparisons"


def test_mixed_results_are_called_mixed(tmp_path, run_folder):
    make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6})
    settings = make(tmp_path, run_folder, {PLAIN: 0.6, SCALED: 0.5, MAXSEP: 0.5}, imbalance=0.1)
    assert find(settings).headline == "Mixed: 1 of 2 tested comparisons gains over the plain head, 1 loses to it"


def test_many_settings_are_summed_up(tmp_path, run_folder):
    for imbalance in (0.5, 0.2, 0.1, 0.05, 0.02):
        gain = 0.1 if imbalance < 0.1 else -0.1
        means = {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.5 + gain}
        settings = make(tmp_path, run_folder, means, imbalance=imbalance)
    found = find(settings)
    assert found.headline == "Against its control the matrix wins 2 and loses 3 of 5 tested comparisons"
    assert any("differences range from" in sentence for sentence in found.sentences)
    assert any("in 2 of them the control too" in sentence for sentence in found.sentences)


def test_after_a_search_the_chosen_radius_counts(tmp_path, run_folder):
    settings = make(tmp_path, run_folder, {PLAIN: 0.6, SCALED: 0.5, MAXSEP: 0.5, ("maxsep", 1.0): 0.6})
    settings[0].chosen = {"maxsep": 1.0, "scaled": 1.0}
    found = find(settings)
    assert found.headline.startswith("At its chosen radius of 1 the matrix is")
    assert found.headline.endswith("the plain head: no more than seed noise")
    assert any("the test set played no part in it" in sentence for sentence in found.sentences)
    other = make(tmp_path / "b", run_folder, {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.6})
    other[0].chosen = {"maxsep": 0.1}
    assert find(other).headline.endswith("scaled alike: more than seed noise")


def test_a_search_speaks_of_its_own_setting_only(tmp_path, run_folder):
    settings = make(
        tmp_path, run_folder, {PLAIN: 0.632, SCALED: 0.7, MAXSEP: 0.7}, dataset="cifar10", network="resnet34"
    )
    settings += make(tmp_path / "b", run_folder, {PLAIN: 0.8, ("maxsep", 1.0): 0.81})
    settings[1].chosen = {"scaled": 1.0, "maxsep": 1.0}
    found = find(settings)
    (told,) = (sentence for sentence in found.sentences if "held-out" in sentence)
    assert told.startswith("Digits, MLP, balanced: ")
    assert "scaled 82.03 %" in told
    assert "63." not in told
    assert "chosen radius" not in found.headline, "other settings stand on the page too"


def test_a_radius_that_was_passed_over_is_not_in_the_headline(tmp_path, run_folder):
    settings = make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6}, imbalance=0.1)
    settings += make(tmp_path / "b", run_folder, {PLAIN: 0.8, ("maxsep", 1.0): 0.8, SCALED: 0.3, MAXSEP: 0.6})
    assert find(settings).headline.startswith("The matrix gains beyond its radius")
    settings[1].chosen = {"maxsep": 1.0}
    found = find(settings)
    assert found.headline.startswith("Gains over the plain head in 1 of 2 tested comparisons, none over the control")
    assert any("radius 0.1: \N{MINUS SIGN}" in sentence for sentence in found.sentences), "but in the sentences"


def test_every_p_value_of_the_tables_is_counted_and_nothing_else(tmp_path, run_folder):
    means = {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6, ("etf", 1.0): 0.55}
    settings = make(tmp_path, run_folder, means)
    settings += make(tmp_path / "b", run_folder, {PLAIN: 0.5, MAXSEP: 0.6}, seeds=2, imbalance=0.1)
    shown = sum("p " in cell.detail for table in accuracy_tables(settings) for row in table.rows for cell in row.cells)
    assert shown == 4
    assert f"The accuracy tables show {shown} paired" in find(settings).sentences[-1]


def test_untested_comparisons_are_not_in_the_denominator(tmp_path, run_folder):
    settings = make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6})
    settings += make(tmp_path / "b", run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6}, seeds=1, imbalance=0.1)
    assert "in 1 of 1 tested comparison" in find(settings).headline


def test_headline_table_and_sentence_agree_after_correction(tmp_path, run_folder):
    tops = {PLAIN: (0.6147, 0.6326, 0.6489), SCALED: (0.7022, 0.6996, 0.6966), MAXSEP: (0.7119, 0.7003, 0.6929)}
    for (head, radius), values in tops.items():
        for seed, top1 in enumerate(values):
            run_folder(tmp_path, RunSpec(head=head, radius=radius, seed=seed), top1=top1)
    settings = settings_of(collect(tmp_path).records)
    found = find(settings)
    assert "in 1 of 1 tested comparison (none after correction), none over the control" in found.headline
    assert found.sentences[0].startswith(
        "Digits, MLP, balanced, radius 0.1: +6.96 points (p = 0.046, corrected 0.091) over plain; "
    )
    assert "2 passed; none does after Holm's correction" in found.sentences[-1]
    cells = [cell for table in accuracy_tables(settings) for row in table.rows for cell in row.cells]
    assert not [cell for cell in cells if cell.tone in ("up", "down")], "colour would claim more than the headline"
    assert sum(cell.detail.startswith("p = ") for cell in cells) == 2
    assert "credit to the radius" in " ".join(found.sentences)


def test_identical_runs_are_not_tested(tmp_path, run_folder):
    for head, radius in (PLAIN, SCALED, MAXSEP):
        for seed in range(3):
            run_folder(tmp_path, RunSpec(head=head, radius=radius, seed=seed), top1=0.5 + 0.1 * seed)
    found = find(settings_of(collect(tmp_path).records))
    assert found.headline == "The same accuracy in every run"
    assert not any("t-test" in sentence for sentence in found.sentences)


def test_counts_leave_zeros_out_and_come_after_the_numbers(tmp_path, run_folder):
    for imbalance in (0.5, 0.2, 0.1, 0.05, 0.02):
        settings = make(tmp_path, run_folder, {PLAIN: 0.3, SCALED: 0.3, MAXSEP: 0.7}, imbalance=imbalance)
    found = find(settings)
    assert "radius alone does not explain" in found.sentences[0]
    assert "range from +40.03 points (Digits, MLP" in found.sentences[1]
    assert found.sentences[1].count("; 3 seeds)") == 2
    assert sum("radius alone" in sentence for sentence in found.sentences) == 1
    assert "Against the plain head 5 comparisons: 5 better by more than seed noise." in found.sentences
    assert not any(" 0 " in sentence for sentence in found.sentences)


def test_a_gain_over_the_control_that_correction_takes_away_decides_nothing(tmp_path, run_folder):
    for imbalance in (0.5, 0.2, 0.1, 0.05, 0.02):
        means = {PLAIN: 0.3, SCALED: 0.5, MAXSEP: 0.511 if imbalance == 0.5 else 0.5}
        settings = make(tmp_path, run_folder, means, imbalance=imbalance)
    assert any("do not decide whether the matrix adds" in sentence for sentence in find(settings).sentences)


def test_heads_that_compare_directions_are_not_said_to_be_over_plain(tmp_path, run_folder):
    """Their plain head is cosine, and that of a loss is the plain head with the same loss."""
    ldam = {"loss": "ldam", "loss_options": options(max_margin=0.5)}
    heads = {("cosine", 1.0): 0.5, ("maxsep_cosine", 1.0): 0.6, ("centred_cosine", 1.0): 0.55}
    settings = make(tmp_path, run_folder, heads, **ldam)
    (told,) = (s for s in find(settings).sentences if s.startswith("Digits"))
    assert ") over cosine (LDAM, margin 0.5); " in told
    assert told.endswith(") over centred_cosine (LDAM, margin 0.5).")
    assert find(settings).headline == "The matrix gains over its control in 1 of 1 tested comparison"
    assert "The gain over the head without the matrix is also a gain over its control" in " ".join(
        find(settings).sentences
    )
    for imbalance in (0.5, 0.2, 0.1, 0.05):
        settings += make(
            tmp_path / f"{imbalance}", run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6}, imbalance=imbalance
        )
    text = " ".join(find(settings).sentences)
    assert "Over the head without the matrix the differences range from" in text
    assert "Over the control the differences range from" in text
    assert "Against the head without the matrix 5 comparisons" in text
    assert "Against the control 5 comparisons" in text
    assert "plain head" not in text


def test_losses_are_named_where_there_are_several(tmp_path, run_folder):
    for loss in ("cross_entropy", "logit_adjusted"):
        settings = make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6}, loss=loss)
    first, second = (s for s in find(settings).sentences if s.startswith("Digits"))
    for sentence, name in ((first, "cross-entropy"), (second, "logit adjusted")):
        assert sentence.startswith(f"Digits, MLP, balanced, maxsep ({name}), radius 0.1: ")
        assert f"over plain ({name}); " in sentence
        assert sentence.endswith(f"over scaled ({name}) at the same radius.")
    for imbalance in (0.5, 0.2, 0.1):
        settings += make(
            tmp_path / f"{imbalance}", run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6}, imbalance=imbalance
        )
    text = " ".join(find(settings).sentences)
    assert "Over the plain head the differences range from" in text
    assert "Over the control, a plain head with the same radius, the differences range from" in text


@pytest.mark.parametrize(("better", "headline"), [(0.1, "Gains over {}"), (-0.1, "Losses to {}")])
def test_the_headline_names_the_head_without_the_matrix(tmp_path, run_folder, better, headline):
    given = {"loss": "ldam", "loss_options": options(max_margin=0.5)}
    heads = {("cosine", 1.0): 0.5, ("maxsep_cosine", 1.0): 0.5 + better}
    settings = make(tmp_path, run_folder, heads, **given)
    assert find(settings).headline.startswith(headline.format("the head without the matrix"))
    settings += make(tmp_path / "b", run_folder, {PLAIN: 0.5, MAXSEP: 0.5 - better}, imbalance=0.1)
    assert "over the head without the matrix, 1 loses to it" in find(settings).headline


DIRECTIONS = {"loss": "ldam", "loss_options": options(reweight_from=16)}
COSINE, BEHIND, CENTRED, TRUE = ((name, 1.0) for name in own_data.COSINES)


def uneven(folder, run_folder, means, **fields):
    """As `make`, but no two heads go up and down with each other."""
    for place, ((head, radius), mean) in enumerate(means.items()):
        for seed in range(3):
            shift = WIGGLE[(seed + place) % 4] + 0.02 * seed
            run_folder(folder, RunSpec(head=head, radius=radius, seed=seed, **fields), top1=mean + shift)
    return settings_of(collect(folder).records)


@pytest.mark.parametrize(
    ("means", "headline", "meaning"),
    [
        (
            {COSINE: 0.5, BEHIND: 0.6, CENTRED: 0.5, TRUE: 0.5},
            "The matrix gains over its control in 1 of 2 tested comparisons",
            "The gain over the head without the matrix is also a gain over its control: what the control has does not "
            "explain it.",
        ),
        (
            {COSINE: 0.5, BEHIND: 0.5, CENTRED: 0.6, TRUE: 0.6},
            "Gains over the head without the matrix in 1 of 2 tested comparisons, none over the control",
            "the control was not beaten beyond noise: these runs give the credit to what the control has, too. They do",
        ),
        (
            {COSINE: 0.5, CENTRED: 0.5, TRUE: 0.6},
            "The matrix gains over its control in 1 of 1 tested comparison",
            "what the control has does not explain it",
        ),
        (
            {COSINE: 0.5, TRUE: 0.6},
            "Gains over the head without the matrix in 1 of 1 tested comparison, the control is still missing",
            "The control (centred_cosine) has no finished runs beside the matrix yet.",
        ),
        (
            {COSINE: 0.5, BEHIND: 0.6},
            "The matrix gains over its control in 1 of 1 tested comparison",
            "also a gain over its control",
        ),
    ],
)
def test_each_head_that_compares_directions_has_its_own_control(tmp_path, run_folder, means, headline, meaning):
    found = find(uneven(tmp_path, run_folder, means, **DIRECTIONS))
    assert found.headline.startswith(headline)
    told = " ".join([found.headline, *found.sentences])
    assert meaning in told
    assert "radius" not in told, "none of these heads has another one"
    assert "scaled" not in told


def test_controls_of_several_kinds_are_called_controls(tmp_path, run_folder):
    """Beside heads with a radius the words are those that are true of both."""
    for kind, base in ((MAXSEP, PLAIN), (TRUE, COSINE)):
        control = SCALED if kind == MAXSEP else CENTRED
        given = {} if kind == MAXSEP else DIRECTIONS
        settings = uneven(tmp_path, run_folder, {base: 0.5, control: 0.6, kind: 0.6}, **given)
    told = find(settings)
    assert told.headline.startswith("Gains over the head without the matrix in 2 of 2 tested comparisons")
    assert told.headline.endswith("none over the control")
    assert "give the credit to what the control has, too" in " ".join(told.sentences)
    alone = make(tmp_path / "alone", run_folder, {PLAIN: 0.5, MAXSEP: 0.6})
    assert "The control (scaled, at the same radius) has no finished runs" in " ".join(find(alone).sentences)


@pytest.mark.parametrize(
    ("means", "headline", "conclusion"),
    [
        ({PLAIN: 0.6, UNIT: 0.6}, "The matrix adds nothing that 3 seeds can show", "the matrix adds nothing that 3 s"),
        ({PLAIN: 0.6, UNIT: 0.5}, "The matrix loses to the plain head in 1 of 1", "the matrix loses at radius 1 ("),
        ({PLAIN: 0.5, UNIT: 0.6}, "The matrix gains over the plain head in 1 of 1", "the matrix gains at radius 1 ("),
        (
            {PLAIN: 0.6, SCALED: 0.5, MAXSEP: 0.5},
            "Losses to the plain head in 1 of 1 tested comparison, none to the control",
            "the matrix adds nothing that 3 seeds can show; the radius 0.1 alone costs",
        ),
        (
            {PLAIN: 0.6, SCALED: 0.7, MAXSEP: 0.6},
            "The matrix loses to its control",
            "the matrix loses at radius 0.1 (\N{MINUS SIGN}10",
        ),
    ],
)
def test_the_headline_and_the_conclusion_use_the_same_words(tmp_path, run_folder, means, headline, conclusion):
    settings = make(tmp_path, run_folder, means)
    records = collect(tmp_path).records
    (told, *_) = contest([record.spec for record in records], records).conclusion
    assert find(settings).headline.startswith(headline)
    assert told.startswith(f"On this data {conclusion}")


def test_what_correction_takes_away_is_told_alike(tmp_path, run_folder):
    tops = {PLAIN: (0.60, 0.62, 0.64), UNIT: (0.57, 0.60, 0.60), SCALED: (0.60, 0.61, 0.65), MAXSEP: (0.6, 0.63, 0.64)}
    for (head, radius), values in tops.items():
        for seed, top1 in enumerate(values):
            run_folder(tmp_path, RunSpec(head=head, radius=radius, seed=seed), top1=top1)
    records = collect(tmp_path).records
    headline = "The matrix loses to the plain head in 1 of 2 tested comparisons (none after correction)"
    assert find(settings_of(records)).headline == headline
    (told, _) = contest([record.spec for record in records], records).conclusion
    assert "the matrix loses at radius 1 (\N{MINUS SIGN}3.00 points over plain, p = 0.0" in told
    assert ", not after correction for 4 tests)" in told


def test_the_page_of_one_comparison_warns_of_heads_that_hardly_trained(tmp_path, run_folder):
    settings = make(tmp_path, run_folder, {PLAIN: 0.8, SCALED: 0.8, MAXSEP: 0.4})
    (told,) = (sentence for sentence in find(settings).sentences if sentence.startswith("But "))
    assert told.startswith("But maxsep, radius 0.1 has hardly trained: 42.07 % where plain has 82.03 %; its")
    settings += make(tmp_path / "b", run_folder, {PLAIN: 0.8, SCALED: 0.8, MAXSEP: 0.4}, imbalance=0.1)
    assert not any(sentence.startswith("But ") for sentence in find(settings).sentences), "too many to name"
    well = make(tmp_path / "c", run_folder, {PLAIN: 0.8, SCALED: 0.8, MAXSEP: 0.8})
    assert not any(sentence.startswith("But ") for sentence in find(well).sentences)
