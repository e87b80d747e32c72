from types import SimpleNamespace

import pytest
from torch import nn

from maxsep.surgery.follow import follow_num_classes, refuse_other_problems


def model_with(**attributes) -> nn.Module:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 3)))
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def test_numbers_on_the_way_that_agreed_follow():
    model = model_with(num_classes=3, num_labels=4)
    model[0].num_classes = 3
    follow_num_classes(model, "0.0", 3, 5)
    assert (model.num_classes, model.num_labels, model[0].num_classes) == (5, 4, 5)


def test_properties_are_left_to_themselves():
    class Counting(nn.Sequential):
        @property
        def num_classes(self) -> int:
            return self[0].out_features

    model = Counting(nn.Linear(2, 3))
    follow_num_classes(model, "0", 3, 5)
    assert model.num_classes == 3


def test_configuration_of_another_size_is_left_alone():
    config = SimpleNamespace(id2label={0: "a"}, num_labels=1)
    follow_num_classes(model_with(config=config), "0.0", 3, 5)
    assert config.id2label == {0: "a"}


def test_same_number_changes_nothing():
    model = model_with(num_classes=3)
    follow_num_classes(model, "0.0", 3, 3)
    assert model.num_classes == 3


def test_problem_types():
    refuse_other_problems(model_with(config=SimpleNamespace(problem_type="single_label_classification")))
    refuse_other_problems(model_with(config={"anything": "else"}))
    with pytest.raises(ValueError, match="common shift of the logits means something"):
        refuse_other_problems(model_with(config=SimpleNamespace(problem_type="regression")))
