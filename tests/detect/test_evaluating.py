import pytest
import torch
from torch import nn

from maxsep.detect.evaluating import device_of, evaluating


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


def test_the_device_is_that_of_the_parameters():
    model = nn.Linear(2, 2, device="meta")
    assert device_of(model) == device_of(model.forward) == torch.device("meta")
    assert device_of(nn.Identity()) is device_of(len) is device_of(lambda x: x) is None
