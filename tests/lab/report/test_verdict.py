"""Every word of the verdict on one's own data, from made numbers."""

from dataclasses import dataclass

import pytest

from maxsep.lab.report.comparison import Method
from maxsep.lab.report.statistics import Comparison
from maxsep.lab.report.verdict import conclude, verdict

UP = Comparison(0.021, 3, 0.001, "more than noise", adjusted=0.004, tests=4)
DOWN = Comparison(-0.0345, 5, 0.001, "more than noise", adjusted=0.004, tests=4)
UNCORRECTED = Comparison(0.01, 4, 0.03, "more than noise", adjusted=0.12, tests=4)
LARGE = Comparison(-0.362, 3, 0.011, "more than noise", adjusted=0.051, tests=4)
ALONE = Comparison(-0.02, 3, 0.012, "more than noise")
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
        (UNCORRECTED, "+1.00 points, p = 0.030, not after correction for 4 tests"),
        (LARGE, "\N{MINUS SIGN}36.20 points, p = 0.011, not after correction for 4 tests"),
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
THREE = "p = 0.004 after correction for 4 tests, 3 seeds"
FIVE = "p = 0.004 after correction for 4 tests, 5 seeds"
OPEN = "p = 0.030, not after correction for 4 tests"
LARGE_OPEN = "p = 0.011, not after correction for 4 tests"
ALONE_LOSES = "the matrix loses at radius 1 (\N{MINUS SIGN}2.00 points over plain, p = 0.012, 3 seeds)"


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({}, f"{NOTHING}, nor does the radius 0.1 alone"),
        ({"radius": UP, "both": UP}, f"{NOTHING}; the radius 0.1 does (+2.10 points over plain)"),
        ({"radius": DOWN, "both": DOWN}, f"{NOTHING}; the radius 0.1 alone costs 3.45 points"),
        (
            {"unit": UP},
            f"the matrix gains at radius 1 (+2.10 points over plain, {THREE}); the radius 0.1 alone makes no "
            "difference "
            "that 3 seeds can show",
        ),
        (
            {"control": UP, "radius": UP, "both": UP},
            f"the matrix gains at radius 0.1 (+2.10 points over scaled, {THREE}); the radius 0.1 alone helps (+2.10 "
            "points "
            "over plain)",
        ),
        (
            {"unit": UP, "control": DOWN, "radius": DOWN},
            f"the matrix gains at radius 1 (+2.10 points over plain, {THREE}); the matrix loses at radius 0.1 "
            f"(\N{MINUS SIGN}3.45 points over scaled, {FIVE}); the radius 0.1 alone costs 3.45 points",
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
        (
            {"unit": UNCORRECTED},
            f"the matrix gains at radius 1 (+1.00 points over plain, {OPEN}); the radius 0.1 alone makes no difference "
            "that 3 seeds can show",
        ),
        ({"unit": ALONE}, f"{ALONE_LOSES}; the radius 0.1 alone makes no difference that 3 seeds can show"),
        (
            {"radius": UNCORRECTED, "both": UNCORRECTED},
            f"{NOTHING}; the radius 0.1 does (+1.00 points over plain, {OPEN}); matrix and radius 0.1 together gain "
            f"1.00 points over plain ({OPEN})",
        ),
        ({"radius": LARGE, "both": NOISE}, f"{NOTHING}; the radius 0.1 alone costs 36.20 points ({LARGE_OPEN})"),
        (
            {"radius": LARGE, "both": DOWN},
            f"{NOTHING}; the radius 0.1 alone costs 36.20 points ({LARGE_OPEN}); matrix and radius 0.1 together lose "
            "3.45 points to plain, and 5 seeds cannot tell which of the two does it",
        ),
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
            f"the matrix gains as cosine_maxsep (+2.10 points over cosine, {THREE}) and as maxsep_cosine (+2.10 "
            "points over "
            f"centred_cosine, {THREE}); centred_cosine alone makes no difference that 3 seeds can show",
        ),
        (
            {"behind": UP, "true": DOWN, "centred": UP},
            f"the matrix gains as cosine_maxsep (+2.10 points over cosine, {THREE}); the matrix loses as maxsep_cosine "
            f"(\N{MINUS SIGN}3.45 points over centred_cosine, {FIVE}); centred_cosine alone helps "
            "(+2.10 points over cosine)",
        ),
        (
            {"both": UP},
            f"{NOTHING}, nor does centred_cosine alone; maxsep_cosine gains 2.10 points over cosine, and 3 seeds "
            "cannot tell whether by the matrix or by what centred_cosine has of it",
        ),
        (
            {"behind": UP, "both": DOWN},
            f"the matrix gains as cosine_maxsep (+2.10 points over cosine, {THREE}); centred_cosine alone makes no "
            "difference "
            "that 3 seeds can show; maxsep_cosine loses 3.45 points to cosine, and 5 seeds cannot tell whether by the "
            "matrix or by what centred_cosine has of it",
        ),
        (
            {"both": LARGE},
            f"{NOTHING}, nor does centred_cosine alone; maxsep_cosine loses 36.20 points to cosine ({LARGE_OPEN}), and "
            "3 seeds cannot tell whether by the matrix or by what centred_cosine has of it",
        ),
        (
            {"true": LARGE, "both": LARGE},
            f"the matrix loses as maxsep_cosine (\N{MINUS SIGN}36.20 points over centred_cosine, {LARGE_OPEN}); "
            f"centred_cosine alone makes no difference that 3 seeds can show; maxsep_cosine loses 36.20 points to "
            f"cosine ({LARGE_OPEN})",
        ),
        (
            {"centred": LARGE, "both": LARGE},
            f"{NOTHING}; centred_cosine alone costs 36.20 points ({LARGE_OPEN}); maxsep_cosine loses 36.20 points to "
            f"cosine ({LARGE_OPEN})",
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


def test_every_loss_has_its_own_sentence():
    arms = [Arm(Method("maxsep", 1.0, loss=loss), found) for loss, found in (("cross_entropy", UP), ("other", NOISE))]
    assert conclude(arms) == [
        f"On this data, with the loss cross_entropy, the matrix gains at radius 1 (+2.10 points over plain, {THREE}).",
        f"On this data, with the loss other, {NOTHING}.",
    ]
    for found in (UP, NOISE, FEW, None):
        *_, told = conclude([*arms, Arm(Method("plain", 1.0, loss="other"), None, None, found, "plain (usual)")])
        ends = f"Plain with this loss against plain (usual): {verdict(found)}."
        assert told == f"On this data, with the loss other, {NOTHING}. {ends}"


@pytest.mark.parametrize("found", [UP, LARGE])
def test_at_radius_1_the_theorem_says_what_differs(found):
    arms = [Arm(Method("plain", 1.0)), Arm(Method("maxsep", 1.0), found), Arm(Method("maxsep", 0.1), NOISE, NOISE)]
    *_, told = conclude(arms, num_classes=10)
    assert told == (
        "At radius 1, under SGD, the matrix differs from plain in its start and in a learning rate of the last layer "
        "that is C/(C\N{MINUS SIGN}1) = 1.11 times as large, in nothing else (docs/theory.md)."
    )
    assert len(conclude(arms)) == 1, "another optimiser: the theorem says nothing"


def test_without_a_difference_at_radius_1_there_is_nothing_to_explain():
    arms = [Arm(Method("maxsep", 1.0), NOISE), Arm(Method("maxsep", 0.1), NOISE, UP)]
    assert len(conclude(arms, num_classes=10)) == 1
    assert len(conclude([Arm(Method("cosine_maxsep", 1.0, loss="ldam"), UP)], num_classes=10)) == 1
