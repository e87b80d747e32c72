import pytest

from maxsep.lab.report.collect import collect
from maxsep.lab.report.comparison import settings_of
from maxsep.lab.report.findings import find
from maxsep.lab.spec import RunSpec

WIGGLE = (0.0, 0.004, -0.003, 0.001)


def make(folder, run_folder, means, seeds=3, **fields):
    for (head, radius), mean in means.items():
        for seed in range(seeds):
            shift = WIGGLE[(seed + ord(head[0])) % 4]
            spec = RunSpec(head=head, radius=radius, seed=seed, **fields)
            run_folder(folder, spec, top1=mean + 0.02 * seed + shift)
    return settings_of(collect(folder).records)


PLAIN, SCALED, MAXSEP = ("plain", 1.0), ("scaled", 0.1), ("maxsep", 0.1)


@pytest.mark.parametrize(
    ("means", "headline"),
    [
        ({PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6}, "Gains over the plain head in 1 of 1 comparisons, none beyond"),
        ({PLAIN: 0.5, SCALED: 0.55, MAXSEP: 0.65}, "The matrix gains beyond its radius in the one"),
        ({PLAIN: 0.6, SCALED: 0.5, MAXSEP: 0.5}, "The matrix lost to the plain head in 1 of 1"),
        ({PLAIN: 0.6, SCALED: 0.6, MAXSEP: 0.6}, "No difference beyond seed noise"),
        (
            {PLAIN: 0.5, MAXSEP: 0.6},
            "Gains over the plain head in 1 of 1 comparisons, the control is still missing",
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
    assert "2 paired two-sided t-tests" in text
    assert "Holm" in text


def test_without_seeds_nothing_is_claimed(tmp_path, run_folder):
    found = find(make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.9}, seeds=2))
    assert found.headline == "Too few seeds to tell a gain from noise"
    text = " ".join(found.sentences)
    assert "p =" not in text
    assert "p <" not in text
    assert "cannot be tested" in text


def test_a_control_that_cannot_be_tested_is_not_called_equal(tmp_path, run_folder):
    make(tmp_path, run_folder, {PLAIN: 0.5, MAXSEP: 0.7})
    settings = make(tmp_path, run_folder, {SCALED: 0.5}, seeds=2)
    assert find(settings).headline.endswith("the control is still missing or has too few seeds")


def test_a_gain_that_correction_takes_away_is_not_the_headline(tmp_path, run_folder):
    for imbalance in (0.5, 0.2, 0.1, 0.05, 0.02):
        means = {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.511 if imbalance == 0.5 else 0.5}
        settings = make(tmp_path, run_folder, means, imbalance=imbalance)
    headline = "1 of 5 comparisons gain beyond the radius, none after correction for their number"
    assert find(settings).headline == headline
    big = make(tmp_path / "b", run_folder, {PLAIN: 0.3, SCALED: 0.3, MAXSEP: 0.7})
    big += make(tmp_path / "c", run_folder, {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.5}, imbalance=0.1)
    assert find(big).headline == "The matrix gains beyond its radius in 1 of 2 comparisons (1 after correction)"


def test_mixed_results_are_called_mixed(tmp_path, run_folder):
    make(tmp_path, run_folder, {PLAIN: 0.5, SCALED: 0.6, MAXSEP: 0.6})
    settings = make(tmp_path, run_folder, {PLAIN: 0.6, SCALED: 0.5, MAXSEP: 0.5}, imbalance=0.1)
    assert find(settings).headline == "Mixed: 1 of 2 comparisons gain over the plain head, 1 lose to it"


def test_many_settings_are_summed_up(tmp_path, run_folder):
    for imbalance in (0.5, 0.2, 0.1, 0.05, 0.02):
        gain = 0.1 if imbalance < 0.1 else -0.1
        means = {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.5 + gain}
        settings = make(tmp_path, run_folder, means, imbalance=imbalance)
    found = find(settings)
    assert found.headline == "Against its control the matrix wins 2 and loses 3 of 5 comparisons"
    assert any("differences range from" in sentence for sentence in found.sentences)
    assert any("in 2 of them the control too" in sentence for sentence in found.sentences)


def test_after_a_search_the_chosen_radius_counts(tmp_path, run_folder):
    settings = make(tmp_path, run_folder, {PLAIN: 0.6, SCALED: 0.5, MAXSEP: 0.5, ("maxsep", 1.0): 0.6})
    found = find(settings, {"maxsep": 1.0, "scaled": 1.0})
    assert found.headline.startswith("At its chosen radius of 1 the matrix is")
    assert found.headline.endswith("the plain head: no more than seed noise")
    assert any("the test set played no part in the choice" in sentence for sentence in found.sentences)
    assert (
        "scaled alike: more than seed noise"
        in find(make(tmp_path / "b", run_folder, {PLAIN: 0.5, SCALED: 0.5, MAXSEP: 0.6}), {"maxsep": 0.1}).headline
    )
