"""What became of many runs, in an exit status and a sentence: src/maxsep/lab/outcome.py."""

import pytest

from maxsep.lab.outcome import Summary
from maxsep.lab.spec import RunSpec

RUN = RunSpec()


@pytest.mark.parametrize(
    ("summary", "status"),
    [
        (Summary(finished=[RUN], postponed=[RUN], elsewhere=[RUN]), 0),
        (Summary(finished=[RUN], failed=[(RUN, "why")]), 1),
        (Summary(failed=[(RUN, "why")], interrupted=143), 143),
    ],
)
def test_the_status_is_that_of_the_worst(summary, status):
    assert summary.status == status


def test_it_counts_what_there_is_to_count():
    assert str(Summary(finished=[RUN], skipped=[RUN, RUN], seconds=90)) == ("1 trained, 2 already there in 1 min 30 s")
    told = Summary(
        failed=[(RUN, "why")], postponed=[RUN], elsewhere=[RUN, RUN], interrupted=130, notes=["no radius was chosen"]
    )
    assert str(told) == (
        "0 trained, 0 already there, 1 failed, 1 left for next time, 2 in the hands of another process in 0.0 s "
        "(interrupted; the same command goes on)\nno radius was chosen"
    )
