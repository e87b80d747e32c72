import pytest
from torch import nn

from maxsep.detect.evaluating import evaluating


def test_every_part_gets_its_own_mode_back_even_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())

    def fail():
        assert not any(part.training for part in model.modules())
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"), evaluating(model):
        fail()
    assert [part.training for part in model.modules()] == [True, True, False]


def test_a_method_stands_for_its_module_and_functions_are_left_alone():
    model = nn.Dropout()
    with evaluating(model.forward):
        assert not model.training
    assert model.training
    with evaluating(len):
        assert model.training
