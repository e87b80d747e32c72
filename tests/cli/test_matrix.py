import json

import pytest


def test_matrix_small_and_large(call):
    assert "109.4712 degrees" in call("matrix", 4)
    assert "0.94281" in call("matrix", 4)
    assert "dense it would take 3.6 TiB; its two coefficient vectors take 7.6 MiB." in call("matrix", 1_000_000)
    told = json.loads(call("matrix", 1000, "--json"))
    assert told["angle"] == pytest.approx(90.0574, abs=1e-4)
    assert told["norm_error"] < 1e-14


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([1], "num_classes must be at least 2, got 1"),
        ([10**12], "1,000,000,000,000 classes need about 74,505.8 GiB of memory"),
    ],
)
def test_bad_input_is_one_clear_line(refuse_in_one_line, arguments, told):
    assert told in refuse_in_one_line("matrix", *arguments)
