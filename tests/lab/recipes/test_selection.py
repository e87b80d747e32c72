import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxsep.lab.recipes import Selection
from maxsep.lab.spec import RunSpec

HEADS, IMBALANCES, SEEDS = ("plain", "scaled", "maxsep"), (1.0, 0.1, 0.01), (0, 1)
SPECS = [RunSpec(head=h, imbalance=i, seed=s, radius=0.1) for h in HEADS for i in IMBALANCES for s in SEEDS]


@given(st.sets(st.sampled_from(HEADS), min_size=1), st.sets(st.sampled_from(IMBALANCES), min_size=1))
def test_alternatives_and_conjunctions(heads, imbalances):
    wanted = [s for s in SPECS if s.head in heads and s.imbalance in imbalances]
    text = f"head={'|'.join(heads)}," + ",".join(f"imbalance={i}" for i in imbalances)
    assert Selection.parse(text).apply(SPECS) == wanted


@pytest.mark.parametrize("text", [None, "", " , "])
def test_nothing_selects_everything(text):
    assert Selection.parse(text).apply(SPECS) == SPECS


def test_numbers_are_compared_as_numbers():
    assert len(Selection.parse("imbalance=1e-2, seed = 1").apply(SPECS)) == 3
    assert not Selection.parse("imbalance=small").matches(SPECS[0])


def test_a_part_of_the_name():
    assert {s.head for s in Selection.parse("-maxsep-r0.1-s0-").apply(SPECS)} == {"maxsep"}


def test_unknown_field():
    with pytest.raises(ValueError, match=r"cannot select by 'hed' \(in 'hed=plain'\). Fields of a run: dataset, "):
        Selection.parse("hed=plain")


def test_no_match_says_what_there_is():
    with pytest.raises(ValueError, match=r"no run matches 'head=etf'. Here there is head: plain, scaled, maxsep."):
        Selection.parse("head=etf").apply(SPECS)
    with pytest.raises(ValueError, match=r"no run matches 'nonsense'. Here there is dataset: digits; imbalance: 1.0"):
        Selection.parse("nonsense").apply(SPECS)
    assert Selection.parse("head=etf").apply([]) == []
