import pytest

from maxsep.lab.durations import format_seconds, parse_budget


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("25m", 1500), ("1h30m", 5400), ("90s", 90), ("90", 90), (45, 45), ("1.5h", 5400), ("2d", 172800), ("5min", 300)],
)
def test_budgets(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-", "-m", "5x", "1..5h", "m"])
def test_bad_budgets(text):
    with pytest.raises(ValueError, match=r"as a time budget. Write it like 25m, 1h30m, 90s or 2h"):
        parse_budget(text)


@pytest.mark.parametrize("text", ["0", "0s", "0h0m", "0.0", "-5m", "-1", 0, 0.0, -2.5])
def test_budgets_without_time(text):
    with pytest.raises(ValueError, match=rf"^a time budget must be more than zero, got {text!r}. Write it like 25m, "):
        parse_budget(text)


def test_times_are_written_readably():
    assert [format_seconds(s) for s in (9.96, 59.6, 119.6, 3599.4, 7260)] == [
        "10.0 s",
        "1 min 00 s",
        "2 min 00 s",
        "59 min 59 s",
        "2 h 01 min",
    ]
