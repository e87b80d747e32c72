"""Every parameter that fit refuses, word for word, and the kinds of numbers that it takes."""

import re

import numpy as np
import pytest
import torch

from maxsep import heads
from maxsep.sklearn import MaxSeparationClassifier
from maxsep.sklearn.parameters import check_parameters, find_device

POSITIVE = "a positive finite number"
COUNT = "a whole number of at least 1"
REFUSED = {
    "hidden_layer_sizes": (
        "a tuple of whole numbers of at least 1",
        [100, (0,), (2.5,), "ab", (True,), None],
        "Pass (100,) for one hidden layer, () for none.",
    ),
    "radius": (POSITIVE, [0, -1.0, np.inf, np.nan, "1", True, None], "It scales all logits; start with 1.0."),
    "head": (f"one of {', '.join(heads.names())}", ["none", None, 3], "Add yours with maxsep.heads.register."),
    "loss": ("one of cross_entropy, logit_adjusted", ["hinge", None], "Take the second if y is imbalanced."),
    "class_weight": (
        "None, 'balanced' or a dict of numbers of at least 0",
        ["even", {0: -1}, {0: "1"}, {0: np.inf}, 3],
        "Pass {label: weight}.",
    ),
    "max_epochs": (COUNT, [0, 1.5, "9", True], "Start with 100."),
    "batch_size": (
        "'auto' or a whole number of at least 1",
        [0, "all", 2.0, None],
        "Leave it at 'auto' for 200 samples.",
    ),
    "learning_rate": (POSITIVE, [0, -0.1, np.nan], "Start with 0.1 at radius 1."),
    "momentum": ("a number from 0 to below 1", [1, -0.1, "0.9"], "Take 0.9."),
    "weight_decay": ("a finite number of at least 0", [-1e-9, np.inf, None], "0 is none."),
    "early_stopping": ("True or False", [1, "yes", None], "True needs samples to hold out."),
    "validation_fraction": ("a number between 0 and 1", [0, 1, 0.0, "0.1"], "Take 0.1."),
    "patience": (COUNT, [0, 2.5], "Start with 10."),
    "verbose": ("True or False", [2, None], "True prints the loss of every epoch."),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (_, bad, _) in REFUSED.items() for value in bad])
def test_fit_refuses(name, value):
    allowed, _, advice = REFUSED[name]
    told = f"The {name!r} parameter of MaxSeparationClassifier must be {allowed}, got {value!r}. {advice}"
    classifier = MaxSeparationClassifier(**{name: value})  # stored as it is
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        classifier.fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        classifier.partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1])


def test_every_parameter_has_a_rule():
    assert {*REFUSED, "device", "random_state"} == set(MaxSeparationClassifier().get_params())


def test_numbers_of_numpy_are_taken():
    classifier = MaxSeparationClassifier(
        [np.int64(3)],
        radius=np.float32(0.5),
        max_epochs=np.int32(2),
        batch_size=np.int64(4),
        learning_rate=np.float64(0.1),
        momentum=0,
        weight_decay=np.float16(0),
        early_stopping=np.bool_(False),
        class_weight={0: np.float32(2), 1: 1},
        random_state=np.int64(3),
    )
    check_parameters(classifier)
    assert classifier.fit([[0.0], [1.0], [2.0]], [0, 1, 1]).n_iter_ == 2


def test_devices():
    assert find_device(torch.device("cpu")) == find_device("cpu") == torch.device("cpu")
    found = find_device("auto")
    assert found.type == (torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu")
    for bad in ("gpu0", "abacus:1", "cuda:99", 1.5, None):
        told = (
            "The 'device' parameter of MaxSeparationClassifier must be a device of this machine, "
            f"got {bad!r}. Torch says: "
        )
        advice = r".*\. Pass 'cpu', or 'auto' for an accelerator if there is one\.$"
        with pytest.raises(ValueError, match=f"^{re.escape(told)}{advice}"):
            MaxSeparationClassifier(device=bad).fit([[0.0], [1.0]], [0, 1])
