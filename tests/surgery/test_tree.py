import pytest
import torch
from torch import nn

from maxsep.surgery.tree import join, refuse_wrapped, submodule, swap, unwrap


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_wrapped_models(wrap):
    model = nn.Sequential(nn.Linear(4, 3))
    wrapped = wrap(model)
    assert unwrap(wrapped) is model
    with pytest.raises(ValueError, match=r"the model is wrapped in .*Change the Sequential inside first"):
        refuse_wrapped(wrapped)


def test_wrappers_of_wrappers():
    model = nn.Linear(4, 3)
    assert unwrap(torch.compile(nn.DataParallel(model))) is model


def test_child_that_is_only_called_like_a_wrapped_one_is_no_wrapper():
    model = nn.Module()
    model._orig_mod = nn.ReLU()
    assert unwrap(model) is model


def test_swap_deep_down_and_in_a_sequential():
    model = nn.Sequential(nn.ModuleDict({"head": nn.ReLU()}))
    swap(model, "0.head", nn.GELU())
    assert isinstance(model[0]["head"], nn.GELU)
    assert list(model.state_dict()) == []
    assert submodule(model, "0.head") is model[0]["head"]
    assert submodule(model, "0.tail") is None
    assert submodule(model, "") is model
    assert join("0", "") == "0"
