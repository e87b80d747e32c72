"""Heads that guess and heads far behind: every word of the warning."""

import pytest

from maxsep.lab.report.cautions import caution, caution_behind, caution_few, is_far_behind, is_guessing

REMEDY = "Train longer or pass a smaller --learning-rate before you compare."


@pytest.mark.parametrize(("classes", "least"), [(2, 0.525), (4, 0.2875), (100, 0.0595)])
def test_guessing(classes, least):
    assert is_guessing(least - 1e-6, classes)
    assert not is_guessing(least + 1e-6, classes)


def test_heads_that_guess_are_named():
    assert caution({"plain": 0.251}, 4) == (
        "But plain has learned next to nothing: its mean over classes is 25.10 %, guessing gives 25.00 %. " + REMEDY
    )
    assert caution({"plain": 0.2, "scaled, radius 0.1": 0.2, "maxsep, radius 0.1": 0.21}, 5) == (
        "But plain; scaled, radius 0.1 and maxsep, radius 0.1 have learned next to nothing: their means over classes "
        "are 20.00, 20.00 and 21.00 %, guessing gives 20.00 %. " + REMEDY
    )


def test_three_quarters_of_the_plain_head_are_enough():
    assert is_far_behind(0.599, 0.8)
    assert not is_far_behind(0.601, 0.8)


def test_heads_far_behind_are_named():
    assert caution_behind({"centred_cosine": 0.555}, "cosine", 0.854) == (
        "But centred_cosine has hardly trained: 55.50 % where cosine has 85.40 %; its comparison says nothing about "
        "the matrix. " + REMEDY
    )
    assert caution_behind({"centred_cosine": 0.555, "maxsep_cosine": 0.491}, "cosine", 0.854) == (
        "But centred_cosine and maxsep_cosine have hardly trained: 55.50 and 49.10 % where cosine has 85.40 %; their "
        "comparisons say nothing about the matrix. " + REMEDY
    )


def test_few_test_images_are_told_with_what_one_of_them_is():
    assert (
        caution_few(3)
        == "But there are 3 test images, and one of them is 33.3 points: whatever the test says, try more."
    )
    assert caution_few(99)
    assert caution_few(100) is None
