"""What is measured: src/maxsep/lab/bench/cases.py."""

import pytest
import torch

from maxsep.lab.bench.cases import OPERATIONS, PLAIN, Sizes

SMALL = Sizes(7, 4, 8, torch.device("cpu"))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_the_plain_layer_beside_it_and_every_form_runs(operation):
    forms = OPERATIONS[operation](SMALL)
    assert [form.name for form in forms].count(PLAIN) == 1
    for form in forms:
        assert form.prepare()() is not None


def test_memory_grows_as_the_forms_do():
    """The dense matrix with the square of the classes, everything else in proportion to them."""
    large = Sizes(7000, 4, 8, torch.device("cpu"))
    for operation, build in OPERATIONS.items():
        for one, thousand in zip(build(SMALL), build(large), strict=True):
            growth = thousand.needs / one.needs
            assert growth > 50_000 if one.name == "dense" else growth == 1000, (operation, one.name)
