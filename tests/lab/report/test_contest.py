"""Runs of one comparison lined up: every arm, the same tests as the report, nothing from other data."""

import json

import pytest

from maxsep.lab.recipes.own_data import own_data
from maxsep.lab.report import collect, render
from maxsep.lab.report.comparison import Method
from maxsep.lab.report.contest import check_data, contest
from maxsep.lab.spec import RunSpec

ACCURACY = {("plain", 1.0): 0.80, ("maxsep", 1.0): 0.801, ("scaled", 0.1): 0.85, ("maxsep", 0.1): 0.8503}
SHIFT = (0.0, 0.013, 0.021)
JITTER = {
    ("maxsep", 1.0): (0.001, -0.002, 0.001),
    ("scaled", 0.1): (0.001, 0.0, -0.001),
    ("maxsep", 0.1): (0, 0.002, 0),
}


@pytest.fixture
def line_up(tmp_path, run_folder):
    """Write made-up runs of some specs and line them up."""

    def make(specs, written=None):
        for spec in specs if written is None else written:
            kind = (spec.head, spec.radius)
            run_folder(tmp_path, spec, ACCURACY[kind] + SHIFT[spec.seed] + JITTER.get(kind, (0, 0, 0))[spec.seed])
        return contest(specs, collect(tmp_path).records)

    return make


def test_the_radius_helps_and_the_matrix_adds_nothing(line_up, tmp_path):
    found = line_up(own_data("digits").specs())
    labels = ["plain", "maxsep, radius 1", "scaled, radius 0.1", "maxsep, radius 0.1"]
    assert [item.label for item in found.contestants] == labels
    assert found.conclusion == [
        "On this data the matrix adds nothing that 3 seeds can show; the radius 0.1 does (+5.00 points over plain)."
    ]
    assert (found.missing, found.tests, found.cautions) == ((), 4, [])
    assert [(label, other) for label, other, _ in found.verdicts()] == [
        ("maxsep, radius 1", "plain"),
        ("scaled, radius 0.1", "plain"),
        ("maxsep, radius 0.1", "plain"),
        ("maxsep, radius 0.1", "scaled, radius 0.1"),
    ]


def test_the_tests_are_those_of_the_report(line_up, tmp_path):
    found = line_up(own_data("digits").specs())
    render(tmp_path, tmp_path / "report")
    rows = {
        (row["head"], row["radius"]): row
        for row in json.loads((tmp_path / "report/report.json").read_text())["results"]
    }
    for item in found.contestants:
        row = rows[item.method.head, item.method.radius]
        for ours, theirs in ((item.over_plain, "gain_over_plain"), (item.over_control, "gain_over_scaled")):
            if ours is not None:
                assert (ours.difference, ours.p, ours.adjusted) == tuple(
                    row[theirs][key] for key in ("difference", "p", "p_after_correction")
                )


def test_losses_do_not_mix(line_up):
    """Without a plain head of its own loss a head has nothing to be compared with, and adds no test."""
    specs = own_data("digits", losses=["cross_entropy", "logit_adjusted"], radii=[1.0]).specs()
    found = line_up(specs, [spec for spec in specs if (spec.head, spec.loss) != ("plain", "logit_adjusted")])
    _, matrix, other_plain, other_matrix = found.contestants
    assert matrix.over_plain is not None
    assert other_matrix.over_plain is None
    assert other_plain.entry.records == {}
    assert found.tests == 1
    assert {spec.head for spec in found.missing} == {"plain"}
    assert "nothing can be told yet: no seed has both runs. Plain with this loss against plain" in found.conclusion[1]


def test_where_losses_stand_side_by_side_all_are_named(line_up):
    specs = own_data("digits", losses=["cross_entropy", "logit_adjusted"]).specs()
    found = line_up(specs)
    by = ", mean over classes" if found.unequal else ""
    rows = [("maxsep{}, radius 1", "plain{}"), ("scaled{}, radius 0.1", "plain{}"), ("maxsep{}, radius 0.1", "plain{}")]
    rows.append(("maxsep{}, radius 0.1", "scaled{}, radius 0.1"))
    assert [(label, other) for label, other, _ in found.verdicts()] == [
        *(tuple(name.format(" (cross-entropy)") for name in row) for row in rows),
        ("plain (logit adjusted)", f"plain (cross-entropy){by}"),
        *(tuple(name.format(" (logit adjusted)") for name in row) for row in rows),
    ]
    assert found.to_dict()["arms"][4]["over_cross_entropy"]["seeds"] == 3
    assert found.tests == sum(comparison.p is not None for *_, comparison in found.verdicts())
    alone = line_up(own_data("digits", losses=["logit_adjusted"]).specs(), [])
    assert alone.verdicts()[0][:2] == ("maxsep (logit adjusted), radius 1", "plain (logit adjusted)")


COSINES = {"cosine": 0.70, "cosine_maxsep": 0.701, "centred_cosine": 0.75, "maxsep_cosine": 0.79}
UNEVEN = {"cosine_maxsep": (1, -2, 1), "centred_cosine": (-1, 0, 1), "maxsep_cosine": (2, -1, 1), "plain": (0, 1, 3)}


@pytest.fixture
def by_direction(tmp_path, run_folder):
    """Line up made-up runs with LDAM, and with cross-entropy where that is asked for."""

    def make(losses=("ldam",), **options):
        specs = own_data("digits", losses=losses, radii=[1.0], **options).specs()
        for spec in specs:
            shift = SHIFT[spec.seed] + UNEVEN.get(spec.head, (0, 0, 0))[spec.seed] / 1000
            run_folder(tmp_path, spec, COSINES.get(spec.head, 0.6) + shift)
        return contest(specs, collect(tmp_path).records)

    return make


def test_each_head_that_compares_directions_meets_its_own_control(by_direction, tmp_path):
    found = by_direction(loss_options=(("reweight_from", 24),))
    name = "{} (LDAM, re-weighted from epoch 24)".format
    assert [item.label for item in found.contestants] == list(map(name, COSINES)), "nothing has another radius than 1"
    assert [(label, other) for label, other, _ in found.verdicts()] == [
        (name("cosine_maxsep"), name("cosine")),
        (name("centred_cosine"), name("cosine")),
        (name("maxsep_cosine"), name("cosine")),
        (name("maxsep_cosine"), name("centred_cosine")),
    ]
    _, behind, centred, true = found.contestants
    assert [item.has_control for item in found.contestants] == [False, False, False, True]
    assert [item.is_plain for item in found.contestants] == [True, False, False, False]
    assert true.over_control.difference == pytest.approx(0.04, abs=0.001)
    assert (behind.over_plain.holds, centred.over_plain.holds, behind.over_control) == (False, True, None)
    assert found.tests == 4
    assert found.conclusion == [
        "On this data the matrix gains as maxsep_cosine (+4.07 points over centred_cosine, p = 0.002 after correction "
        "for 4 tests, 3 seeds); centred_cosine alone helps (+5.00 points over cosine)."
    ]
    told = found.to_dict()["arms"]
    assert [arm["over_plain"] is None for arm in told] == [True, False, False, False]
    assert [arm["over_control"] is None for arm in told] == [True, True, True, False]
    assert told[0]["loss_options"] == {"reweight": "effective", "reweight_from": 24}
    render(tmp_path, tmp_path / "report")
    rows = {row["head"]: row for row in json.loads((tmp_path / "report/report.json").read_text())["results"]}
    for item in found.contestants:
        for ours, theirs in ((item.over_plain, "gain_over_plain"), (item.over_control, "gain_over_scaled")):
            if ours is not None:
                row = rows[item.method.head][theirs]
                assert (ours.p, ours.adjusted) == (row["p"], row["p_after_correction"]), "the tests of the report"


def test_cosine_meets_plain_with_cross_entropy(by_direction, tmp_path):
    found = by_direction(("cross_entropy", "ldam"))
    assert [item.label for item in found.contestants][:3] == [
        *("plain (cross-entropy)", "maxsep (cross-entropy), radius 1", "cosine (LDAM)")
    ]
    (rival,) = (item for item in found.contestants if item.rival)
    assert (rival.method.head, rival.rival) == ("cosine", "plain (cross-entropy)")
    assert rival.over_loss.difference == pytest.approx(0.1 - 0.004 / 3)
    assert ("cosine (LDAM)", "plain (cross-entropy)", rival.over_loss) in found.verdicts()
    assert found.tests == sum(comparison.p is not None for *_, comparison in found.verdicts()) == 6
    assert "Cosine with this loss against plain (cross-entropy): better by 9.87 points" in found.conclusion[1]


def test_a_cosine_head_that_guesses_is_no_reference(run_folder, tmp_path):
    specs = own_data("digits", losses=["ldam"], seeds=1).specs()
    for spec in specs:
        run_folder(tmp_path, spec, 0.11 if spec.head == "cosine" else 0.8)
    (told,) = contest(specs, collect(tmp_path).records).cautions
    assert told.startswith("But cosine (LDAM) has learned next to nothing")


def test_every_head_that_guesses_is_named(run_folder, tmp_path):
    specs = own_data("digits", losses=["ldam"], seeds=1).specs()
    for spec in specs:
        run_folder(tmp_path, spec, 0.12 if spec.head in ("maxsep_cosine", "centred_cosine") else 0.8)
    (told,) = contest(specs, collect(tmp_path).records).cautions
    assert told.startswith("But centred_cosine (LDAM) and maxsep_cosine (LDAM) have learned next to nothing: their")


def test_heads_far_behind_the_plain_head_of_their_loss_have_hardly_trained(run_folder, tmp_path):
    specs = own_data("digits", losses=["cross_entropy", "ldam"], radii=[1.0], seeds=1).specs()
    reached = {"plain": 0.9, "maxsep": 0.88, "cosine": 0.854, "centred_cosine": 0.555, "maxsep_cosine": 0.491}
    for spec in specs:
        run_folder(tmp_path, spec, reached.get(spec.head, 0.65))
    (told,) = contest(specs, collect(tmp_path).records).cautions
    assert told.startswith(
        "But centred_cosine (LDAM) and maxsep_cosine (LDAM) have hardly trained: 55.50 and 49.10 % where cosine (LDAM) "
        "has 85.40 %; their comparisons say nothing about the matrix."
    )


@pytest.mark.parametrize(("optimiser", "sentences"), [("sgd", 2), ("adamw", 1)])
def test_the_theorem_speaks_of_sgd_alone(run_folder, tmp_path, optimiser, sentences):
    specs = own_data("digits", radii=[1.0], optimiser=optimiser).specs()
    for spec in specs:
        run_folder(tmp_path, spec, 0.8 + spec.seed / 50 - (0.05 + spec.seed / 1000) * (spec.head == "maxsep"))
    told = contest(specs, collect(tmp_path).records).conclusion
    assert len(told) == sentences
    assert "the matrix loses at radius 1 (\N{MINUS SIGN}5.10 points over plain, p < 0.001, 3 seeds)." in told[0]
    assert all("C/(C\N{MINUS SIGN}1) = 1.11 times as large" in sentence for sentence in told[1:])


def test_runs_that_are_missing(line_up):
    specs = own_data("digits").specs()
    found = line_up(specs, specs[:6])
    assert len(found.missing) == 6
    assert found.tests == 0
    assert found.conclusion == ["On this data nothing can be told yet: fewer than 3 seeds."]
    nothing = contest(specs, [])
    assert nothing.conclusion == ["On this data nothing can be told yet: no seed has both runs."]
    assert (nothing.class_counts, nothing.unequal, len(nothing.missing)) == ([], False, 12)


def test_unequal_classes_are_noticed(line_up):
    found = line_up(own_data("digits", imbalance=0.1).specs())
    assert found.unequal
    (many, medium) = found.contestants[0].groups.items()
    assert (many[0], medium[0]) == ("many", "medium"), "from 500 to 50 images none is rare"
    assert found.to_dict()["arms"][0]["groups"] == dict([many, medium])
    assert many[1] == pytest.approx(sum(_group_means(found.contestants[0], slice(0, 7))) / 3)


def _group_means(item, places):
    found = [record.metrics["per_class"][places] for record in item.entry.records.values()]
    return [sum(values) / len(values) for values in found]


def test_as_data(line_up):
    specs = own_data("digits").specs()
    told = json.loads(json.dumps(line_up(specs, specs[:-1]).to_dict()))
    assert told["tests"] == 2, "two seeds are not testable"
    assert told["missing"] == [specs[-1].name]
    plain, matrix, control, small = told["arms"]
    assert plain["top1"]["mean"] == pytest.approx(0.8113, abs=1e-4)
    assert plain["top1"]["seeds"] == pytest.approx({"0": 0.80, "1": 0.813, "2": 0.821})
    assert (plain["over_plain"], plain["over_control"], matrix["over_control"]) == (None, None, None)
    assert control["over_plain"]["verdict"] == "better by 5.00 points, more than seed noise"
    assert control["over_plain"]["p"] < control["over_plain"]["p_after_correction"] < 0.05
    assert small["over_control"]["verdict"] == "not testable: fewer than 3 seeds"
    assert (small["over_control"]["seeds"], small["over_control"]["p"]) == (2, None)


def test_a_plain_head_that_guesses_is_no_reference(run_folder, tmp_path):
    specs = own_data("digits", seeds=1).specs()
    for spec in specs:
        run_folder(tmp_path, spec, 0.11 if spec.head == "plain" else 0.8)
    found = contest(specs, collect(tmp_path).records)
    assert len(found.cautions) == 1
    assert found.cautions[0].startswith("But plain has learned next to nothing: its mean over classes is 11.00 %")
    assert found.to_dict()["cautions"] == found.cautions


def test_other_images_are_not_compared(line_up, run_folder, tmp_path):
    specs = own_data("folder:pictures", seeds=1).specs()
    records = line_up(specs[:1]).records
    check_data(records)
    check_data(records, records[0].metrics["class_counts"], 1000)
    check_data(records, records[0].metrics["class_counts"])
    check_data([], [3, 4], 2)
    with pytest.raises(ValueError, match="now 7 and 1,000"):
        check_data(records, [3, 4])
    message = (
        r"images of folder:pictures have changed .*5,000 training and 1,000 test images; now 7 and 2\). Name another"
    )
    with pytest.raises(ValueError, match=message):
        check_data(records, [3, 4], 2)
    changed = {**records[0].metrics, "num_test": 900}
    run_folder(tmp_path, specs[1], 0.5, metrics=changed)
    with pytest.raises(ValueError, match=r"5,000 training and 900 test images; 5,000 training and 1,000 test images"):
        contest(specs, collect(tmp_path).records)


def test_losses_meet_by_the_mean_over_classes_where_classes_are_unequal(tmp_path, run_folder):
    """Test images with the same tail: the accuracy says nothing, the mean over classes all."""
    specs = own_data("digits", radii=[1.0], losses=["cross_entropy", "logit_adjusted"]).specs()
    for spec in specs:
        shift = 0.1 + spec.seed / 100 if spec.loss == "logit_adjusted" else 0.0
        path = run_folder(tmp_path, spec, 0.8 + spec.seed / 1000) / "result.json"
        result = json.loads(path.read_text())
        result["metrics"] |= {"balanced": 0.6 + shift, "class_counts": [150, *[20] * 9]}
        path.write_text(json.dumps(result))
    found = contest(specs, collect(tmp_path).records)
    (other,) = (item for item in found.contestants if item.rival)
    assert other.rival == "plain (cross-entropy), mean over classes"
    assert other.over_loss.difference == pytest.approx(0.11)
    assert "Plain with this loss against plain (cross-entropy), mean over classes: better by" in found.conclusion[1]


def test_a_rival_that_is_missing_is_told_as_other_missing_runs_are(line_up):
    specs = own_data("digits", losses=["cross_entropy", "logit_adjusted"], radii=[1.0]).specs()
    found = line_up(specs, [spec for spec in specs if (spec.head, spec.loss) != ("plain", "cross_entropy")])
    (told,) = (comparison for label, _, comparison in found.verdicts() if label == "plain (logit adjusted)")
    assert told is None
    assert found.conclusion[1].endswith("not testable: no seed has both runs.")


def test_when_to_reweigh_asks_for_reweighting():
    short, long = ((("reweight_from", 8),), (("reweight", "effective"), ("reweight_from", 8)))
    methods = {Method.of(RunSpec(head="cosine", loss="ldam", loss_options=given)) for given in (short, long)}
    assert len(methods) == 1
