from torch import nn

from maxsep import MaxSeparationHead
from maxsep.heads import ETFHead
from maxsep.surgery.convert import HeadRecord, fit_to_model, records_of


def test_records_say_all_that_is_needed_to_build_the_head_again():
    model = nn.Sequential(ETFHead(9, 4, 2.0, reserved=1), MaxSeparationHead(4, 3, bias=False))
    etf, maxsep = records_of(model)
    assert etf == HeadRecord("0", "etf", 9, 4, 2.0, {"bias": False, "normalise": False, "reserved": 1})
    assert maxsep == HeadRecord("1", "maxsep", 4, 3, 1.0, {"bias": False})


def test_state_of_the_same_model_is_passed_on_as_it_is():
    model = nn.Sequential(nn.Linear(4, 4), MaxSeparationHead(4, 3))
    state = model.state_dict()
    assert fit_to_model(state, records_of(model), model) == state


def test_given_state_is_not_changed():
    model = nn.Sequential(MaxSeparationHead(4, 3))
    state = model.state_dict()
    fitted = fit_to_model(state, records_of(model), nn.Sequential(nn.Linear(4, 3)))
    assert fitted["0.weight"].shape == (3, 4)
    assert state["0.weight"].shape == (2, 4)
