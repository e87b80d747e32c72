"""Training in parts, warm starts and early stopping."""

import copy
import pickle

import numpy as np
import pytest
from classifiers import data, far_apart, quick

# few epochs suffice for most properties
pytestmark = pytest.mark.filterwarnings("ignore:the training loss is still falling")


def test_early_stopping_keeps_the_best_epoch():
    X, y = data(rows=60)
    setting = {"early_stopping": True, "validation_fraction": 0.3, "patience": 5, "learning_rate": 0.5}
    stopped = quick(max_epochs=200, **setting).fit(X, y)
    curve = stopped.validation_curve_
    best = int(np.argmin(curve))
    assert len(curve) == stopped.n_iter_ == best + 1 + 5 < 200
    again = quick(max_epochs=best + 1, **setting | {"patience": 1000}).fit(X, y)
    assert again.validation_curve_ == curve[: best + 1]
    assert far_apart(stopped, again, X) == 0


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
@pytest.mark.parametrize("batch_size", ["auto", 16])
def test_parts_and_warm_starts_go_on_with_weights_moments_and_order(optimiser, batch_size):
    X, y = data()
    options = {"optimiser": optimiser, "batch_size": batch_size}
    whole = quick(max_epochs=6, **options).fit(X, y)
    parts, warm = quick(**options), quick(max_epochs=2, warm_start=True, **options)
    for _ in range(6):
        parts.partial_fit(X, y, classes=np.unique(y))
        parts = pickle.loads(pickle.dumps(parts))
    for _ in range(3):
        warm.fit(X, y)
    for other in (parts, warm):
        assert far_apart(whole, other, X) == 0
        assert other.loss_curve_ == whole.loss_curve_
        assert other.n_iter_ == 6


def test_a_warm_start_keeps_network_and_classes():
    X, y = data()
    warm = quick(warm_start=True).fit(X, y)
    for name, value in {"hidden_layer_sizes": 9, "radius": 2.0, "head": "control"}.items():
        changed = copy.deepcopy(warm).set_params(**{name: value})
        with pytest.raises(ValueError, match=name):
            changed.fit(X, y)
    with pytest.raises(ValueError, match="class"):
        warm.fit(X[y < 3], y[y < 3])
    with pytest.raises(ValueError, match="features"):
        warm.fit(X[:, :3], y)
    assert warm.set_params(hidden_layer_sizes=8, radius=1, optimiser="adam").fit(X, y).n_iter_ == 40


def test_a_warm_start_continues_both_curves():
    X, y = data()
    warm = quick(warm_start=True, early_stopping=True).fit(X, y)
    first = [*warm.validation_curve_]
    assert warm.fit(X, y).validation_curve_[: len(first)] == first
    assert len(warm.validation_curve_) == len(warm.loss_curve_) == warm.n_iter_


def test_parts_may_lack_classes_and_parameters_may_change():
    X, y = data()
    few = y < 2
    classifier = quick().partial_fit(X[few], y[few], classes=[3, 2, 1, 0])
    assert classifier.predict_proba(X).shape == (120, 4)
    before = copy.deepcopy(classifier.module_[1].weight)
    classifier.set_params(learning_rate=1e-9, momentum=0.0).partial_fit(X, y)
    assert 0 < (classifier.module_[1].weight - before).abs().max() < 1e-6
    assert classifier.partial_fit(X[y == 3], y[y == 3]).n_iter_ == 3  # one class alone, in a later call
    assert classifier.set_params(learning_rate=0.1).fit(X, y).n_iter_ == 20  # starts anew


def test_a_first_part_of_one_row_is_warned_of():
    X, y = data()
    with pytest.warns(UserWarning, match="partial_fit") as warned:
        classifier = quick().partial_fit(X[:1], y[:1], classes=np.unique(y))
    assert warned[0].filename == __file__
    assert np.isfinite(classifier.predict_proba(X)).all()
    assert classifier.partial_fit(X[:1], y[:1]).n_iter_ == 2  # without a warning


@pytest.mark.parametrize(
    "setting", [{"class_weight": "balanced"}, {"loss": "logit_adjusted"}, {"early_stopping": True}]
)
def test_what_needs_all_samples_has_no_parts(setting):
    assert hasattr(quick(), "partial_fit")
    assert not hasattr(quick(**setting), "partial_fit")


def test_classes_of_parts_are_checked():
    X, y = data()
    for first, label in ((None, 0), ([0], 0), ([0, 1], 7)):
        with pytest.raises(ValueError, match="class"):
            quick().partial_fit(X[:2], [label, label], classes=first)
    with pytest.raises(ValueError, match="classes"):
        quick().partial_fit(X, y, classes=np.unique(y)).partial_fit(X, y, classes=[0, 1])
