"""Every word of the verdict on one's own data, from made numbers."""

from dataclasses import dataclass

import pytest

from maxsep.lab.report.comparison import Method
from maxsep.lab.report.statistics import Comparison
from maxsep.lab.report.verdict import caution, conclude, is_guessing, verdict

UP = Comparison(0.021, 3, 0.001, "more than noise", adjusted=0.004)
DOWN = Comparison(-0.0345, 5, 0.001, "more than noise", adjusted=0.004)
UNCORRECTED = Comparison(0.01, 4, 0.03, "more than noise", adjusted=0.12)
NOISE = Comparison(0.003, 3, 0.4, "noise", adjusted=1.0)
SAME = Comparison(0.0, 3, None, "identical", "the same value for every seed")
FLAT = Comparison(0.01, 3, None, "not testable", "the difference is the same for every seed")
FEW = Comparison(0.05, 2, None, "not testable", "2 common seeds, at least 3 needed")


@pytest.mark.parametrize(
    ("comparison", "told"),
    [
        (UP, "better by 2.10 points, more than seed noise"),
        (DOWN, "worse by 3.45 points, more than seed noise"),
        (NOISE, "no difference that 3 seeds can show"),
        (UNCORRECTED, "no difference that 4 seeds can show after correction for the number of tests"),
        (SAME, "the same in all 3 seeds"),
        (FLAT, "not testable: the difference is the same for every seed"),
        (FEW, "not testable: fewer than 3 seeds"),
        (None, "not testable: no seed has both runs"),
    ],
)
def test_one_comparison(comparison, told):
    assert verdict(comparison) == told


@dataclass(frozen=True)
class Arm:
    method: Method
    over_plain: Comparison | None = None
    over_control: Comparison | None = None
    over_loss: Comparison | None = None
    rival: str = ""


def told(unit=NOISE, radius=NOISE, both=NOISE, control=NOISE, loss="cross_entropy"):
    """The conclusion: the matrix at radius 1, the radius 0.1 alone, matrix and radius, the matrix at that radius."""
    arms = [
        Arm(Method("plain", 1.0, loss=loss)),
        Arm(Method("maxsep", 1.0, loss=loss), unit),
        Arm(Method("scaled", 0.1, loss=loss), radius),
        Arm(Method("maxsep", 0.1, loss=loss), both, control),
    ]
    (sentence,) = conclude(arms)
    start, end = "On this data ", "."
    assert sentence.startswith(start)
    assert sentence.endswith(end)
    return sentence.removeprefix(start).removesuffix(end)


NOTHING = "the matrix adds nothing that 3 seeds can show"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({}, f"{NOTHING}, nor does the radius 0.1 alone"),
        ({"radius": UP, "both": UP}, f"{NOTHING}; the radius 0.1 does (+2.10 points over plain)"),
        ({"radius": DOWN, "both": DOWN}, f"{NOTHING}; the radius 0.1 alone costs 3.45 points"),
        (
            {"unit": UP},
            "the matrix helps at radius 1 (+2.10 points over plain); the radius 0.1 alone makes no difference that 3 "
            "seeds can show",
        ),
        (
            {"control": UP, "radius": UP, "both": UP},
            "the matrix helps at radius 0.1 (+2.10 points over scaled); the radius 0.1 alone helps (+2.10 points over "
            "plain)",
        ),
        (
            {"unit": UP, "control": DOWN, "radius": DOWN},
            "the matrix helps at radius 1 (+2.10 points over plain); the matrix hurts at radius 0.1 "
            "(\N{MINUS SIGN}3.45 points over scaled); the radius 0.1 alone costs 3.45 points",
        ),
        (
            {"both": UP},
            f"{NOTHING}, nor does the radius 0.1 alone; matrix and radius 0.1 together gain 2.10 points over plain, "
            "and 3 seeds cannot tell which of the two does it",
        ),
        (
            {"both": DOWN},
            f"{NOTHING}, nor does the radius 0.1 alone; matrix and radius 0.1 together lose 3.45 points to plain, "
            "and 5 seeds cannot tell which of the two does it",
        ),
        (
            {"unit": SAME, "control": SAME},
            "the matrix changes nothing that 3 seeds can show; the radius 0.1 alone makes no difference that 3 seeds "
            "can show",
        ),
        ({"unit": UNCORRECTED}, f"{NOTHING}, nor does the radius 0.1 alone"),
        ({"unit": FEW, "radius": FEW, "both": FEW, "control": FEW}, "nothing can be told yet: fewer than 3 seeds"),
        (
            {"unit": None, "radius": None, "both": None, "control": None},
            "nothing can be told yet: no seed has both runs",
        ),
        (
            {"control": FEW, "radius": UP},
            f"{NOTHING}; at radius 0.1 it is not testable: fewer than 3 seeds; the radius 0.1 alone helps (+2.10 "
            "points over plain)",
        ),
        (
            {"unit": FEW, "control": None},
            "at radii 1 and 0.1 the matrix is not testable: fewer than 3 seeds; the radius 0.1 alone makes no "
            "difference that 3 seeds can show",
        ),
        ({"radius": FLAT}, f"{NOTHING}; the radius 0.1 alone is not testable: {FLAT.reason}"),
    ],
)
def test_the_conclusion(found, sentence):
    assert told(**found) == sentence


def by_direction(behind=NOISE, centred=NOISE, both=NOISE, true=NOISE):
    """The conclusion of LDAM: the matrix behind cosines, the control alone, and the matrix over plain and control."""
    arms = [
        Arm(Method("cosine", 1.0, loss="ldam")),
        Arm(Method("cosine_maxsep", 1.0, loss="ldam"), behind),
        Arm(Method("centred_cosine", 1.0, loss="ldam"), centred),
        Arm(Method("maxsep_cosine", 1.0, loss="ldam"), both, true),
    ]
    (sentence,) = conclude(arms)
    return sentence.removeprefix("On this data ").removesuffix(".")


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({}, f"{NOTHING}, nor does centred_cosine alone"),
        ({"centred": UP, "both": UP}, f"{NOTHING}; centred_cosine does (+2.10 points over cosine)"),
        ({"centred": DOWN, "both": DOWN}, f"{NOTHING}; centred_cosine alone costs 3.45 points"),
        (
            {"behind": UP, "true": UP},
            "the matrix helps as cosine_maxsep (+2.10 points over cosine) and as maxsep_cosine (+2.10 points over "
            "centred_cosine); centred_cosine alone makes no difference that 3 seeds can show",
        ),
        (
            {"behind": UP, "true": DOWN, "centred": UP},
            "the matrix helps as cosine_maxsep (+2.10 points over cosine); the matrix hurts as maxsep_cosine "
            "(\N{MINUS SIGN}3.45 points over centred_cosine); centred_cosine alone helps (+2.10 points over cosine)",
        ),
        (
            {"both": UP},
            f"{NOTHING}, nor does centred_cosine alone; maxsep_cosine gains 2.10 points over cosine, and 3 seeds "
            "cannot tell whether by the matrix or by what centred_cosine has of it",
        ),
        (
            {"behind": UP, "both": DOWN},
            "the matrix helps as cosine_maxsep (+2.10 points over cosine); centred_cosine alone makes no difference "
            "that 3 seeds can show; maxsep_cosine loses 3.45 points to cosine, and 5 seeds cannot tell whether by the "
            "matrix or by what centred_cosine has of it",
        ),
        (
            {"behind": FEW, "true": None, "centred": FLAT},
            "nothing can be told yet: fewer than 3 seeds",
        ),
        (
            {"behind": FEW, "true": None},
            "as cosine_maxsep and maxsep_cosine the matrix is not testable: fewer than 3 seeds; centred_cosine alone "
            "makes no difference that 3 seeds can show",
        ),
        ({"centred": FEW}, f"{NOTHING}; centred_cosine alone is not testable: fewer than 3 seeds"),
    ],
)
def test_the_conclusion_names_heads_that_compare_directions(found, sentence):
    assert by_direction(**found) == sentence


def test_the_plain_head_of_a_loss_is_named():
    arms = [Arm(Method("cosine", 1.0, loss="ldam"), None, None, UP, "plain (cross-entropy)")]
    (told,) = conclude([*arms, Arm(Method("cosine_maxsep", 1.0, loss="ldam"), NOISE)])
    assert told.endswith(
        ". Cosine with this loss against plain (cross-entropy): better by 2.10 points, more than seed noise."
    )


def test_without_a_radius_there_is_nothing_to_say_of_it():
    assert conclude([Arm(Method("plain", 1.0)), Arm(Method("maxsep", 1.0), NOISE)]) == [f"On this data {NOTHING}."]


def test_several_radii_share_a_verb():
    arms = [Arm(Method("scaled", radius), NOISE) for radius in (0.1, 0.5)]
    arms += [Arm(Method("maxsep", radius), NOISE, NOISE) for radius in (0.1, 0.5)]
    assert conclude(arms) == [f"On this data {NOTHING}, nor do the radii 0.1 and 0.5 alone."]
    arms = [Arm(arm.method, FEW if arm.method.head == "scaled" else NOISE, UP) for arm in arms]
    assert conclude(arms)[0].endswith("the radii 0.1 and 0.5 alone are not testable: fewer than 3 seeds.")
    arms = [Arm(arm.method, NOISE, UP) for arm in arms]
    assert "the radii 0.1 and 0.5 alone make no difference that 3 seeds can show." in conclude(arms)[0]


@pytest.mark.parametrize(("classes", "least"), [(2, 0.525), (4, 0.2875), (100, 0.0595)])
def test_guessing(classes, least):
    assert is_guessing(least - 1e-6, classes)
    assert not is_guessing(least + 1e-6, classes)
    assert caution("plain", 0.251, 4) == (
        "But plain has learned next to nothing: its mean over classes is 25.10 %, guessing gives 25.00 %. Train "
        "longer, or at another learning rate, before you compare."
    )


def test_every_loss_has_its_own_sentence():
    arms = [Arm(Method("maxsep", 1.0, loss=loss), found) for loss, found in (("cross_entropy", UP), ("other", NOISE))]
    assert conclude(arms) == [
        "On this data, with the loss cross_entropy, the matrix helps at radius 1 (+2.10 points over plain).",
        f"On this data, with the loss other, {NOTHING}.",
    ]
    for found in (UP, NOISE, FEW, None):
        *_, told = conclude([*arms, Arm(Method("plain", 1.0, loss="other"), None, None, found, "plain (usual)")])
        ends = f"Plain with this loss against plain (usual): {verdict(found)}."
        assert told == f"On this data, with the loss other, {NOTHING}. {ends}"
