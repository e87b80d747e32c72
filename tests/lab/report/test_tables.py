import pytest

from maxsep.lab.report.statistics import Comparison, Summary
from maxsep.lab.report.tables import EMPTY, Cell, Row, Table, gain, p_text, percent, signed, verdict_text

TABLE = Table(
    "t",
    "A table",
    ("head", "value"),
    (
        Row((Cell("plain"), Cell("1.0", "3 seeds", notes=("first", "second"))), "group | one"),
        Row((Cell("maxsep"), Cell("2.0", tone="strong", value=2.0, notes=("second",)))),
    ),
)


def test_footnotes_are_numbered_by_first_use():
    assert TABLE.notes == ("first", "second")
    assert TABLE.marks(TABLE.rows[0].cells[1]) == "1, 2"
    assert TABLE.marks(TABLE.rows[1].cells[1]) == "2"


def test_markdown():
    lines = TABLE.to_markdown().splitlines()
    assert lines[:3] == ["| head | value |", "| --- | ---: |", "| **group \\| one** |  |"]
    assert lines[3] == "| plain | 1.0 (3 seeds) [1, 2] |"
    assert lines[4] == "| maxsep | **2.0** [2] |"
    assert lines[-1] == "2. second"


def test_json_repeats_the_group_of_each_row():
    rows = TABLE.to_dict()["rows"]
    assert [row["group"] for row in rows] == ["group | one", "group | one"]
    assert rows[1]["cells"][1]["value"] == 2.0


def test_a_row_must_fit():
    with pytest.raises(ValueError, match="table 't' has 2 columns, but a row has 1 cells"):
        Table("t", "T", ("a", "b"), (Row((Cell("x"),)),))


def test_percent():
    assert percent(None) == EMPTY
    assert percent(Summary(0.81234, None, 1)).text == "81.23"
    assert percent(Summary(0.81234, None, 1)).detail == "1 seed"
    assert percent(Summary(0.8, 0.0123, 3)).text == "80.00 ± 1.23"


@pytest.mark.parametrize(
    ("difference", "p", "verdict", "less_is_better", "tone"),
    [
        (0.1, 0.01, "more than noise", False, "up"),
        (-0.1, 0.01, "more than noise", False, "down"),
        (-0.1, 0.01, "more than noise", True, "up"),
        (0.1, 0.2, "noise", False, "muted"),
        (0.1, None, "not testable", False, "muted"),
    ],
)
def test_only_what_is_more_than_noise_is_coloured(difference, p, verdict, less_is_better, tone):
    cell = gain(Comparison(difference, 3, p, verdict), less_is_better=less_is_better)
    assert cell.tone == tone
    assert ("p" in cell.detail.split()) == (p is not None)


def test_nothing_to_compare():
    assert gain(None) == EMPTY


def test_numbers_in_words():
    assert signed(1.234) == "+1.23"
    assert signed(-0.001) == "0.00"
    assert p_text(0.04999) == "p = 0.050"
    assert p_text(0.5) == "p = 0.50"
    assert verdict_text(Comparison(0.1, 5, 0.0001, "more than noise")) == "more than noise, p < 0.001"


@pytest.mark.parametrize(
    ("p", "adjusted", "told"),
    [
        (0.2, 1.0, "noise, p = 0.20, corrected 1.00"),
        (0.2, 0.2, "noise, p = 0.20"),
        (0.01, 0.03, "more than noise, p = 0.010, corrected 0.030"),
        (0.0001, 0.0004, "more than noise, p < 0.001, corrected < 0.001"),
        (0.04, 0.12, "p = 0.040, corrected 0.12"),
    ],
)
def test_both_p_values_are_told_apart(p, adjusted, told):
    comparison = Comparison(0.1, 3, p, "more than noise" if p < 0.05 else "noise", adjusted=adjusted)
    assert verdict_text(comparison) == gain(comparison).detail == told
    assert gain(comparison, brief=True).detail == told.split(", corrected")[0].split("noise, ")[-1]
