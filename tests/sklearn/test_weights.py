"""Rare classes, class weights and weights of samples."""

import numpy as np
import pytest
from classifiers import data, far_apart, quick
from sklearn.metrics import balanced_accuracy_score

# few epochs suffice for most properties
pytestmark = pytest.mark.filterwarnings("ignore:the training loss is still falling")


def rare(rows, shares, seed):
    rng = np.random.default_rng(seed)
    y = rng.choice(3, rows, p=shares)
    centres = np.array([[0.0, 0.0], [1.5, 0.0], [0.0, 1.5]])
    return centres[y] + rng.normal(size=(rows, 2)), np.array(["common", "rare", "rarer"])[y]


@pytest.mark.parametrize("setting", [{"loss": "logit_adjusted"}, {"class_weight": "balanced"}])
def test_rare_classes_are_found(setting):
    X, y = rare(1500, [0.92, 0.05, 0.03], seed=0)
    X_even, y_even = rare(1500, [1 / 3, 1 / 3, 1 / 3], seed=1)
    usual, mended = (balanced_accuracy_score(y_even, quick(**one).fit(X, y).predict(X_even)) for one in ({}, setting))
    assert mended > usual + 0.15


def test_priors_are_those_of_y_and_class_weights_come_on_top():
    """Adjusting the logits by log(prior) in training is what subtracting it afterwards is, for a linear classifier."""
    X, y = rare(150, [0.7, 0.2, 0.1], seed=0)
    setting = {"hidden_layer_sizes": (), "max_epochs": 2000, "weight_decay": 0.0}
    usual, adjusted = (quick(loss=loss, **setting).fit(X, y) for loss in ("cross_entropy", "logit_adjusted"))
    log_prior = np.log(np.unique(y, return_counts=True)[1] / len(y))
    difference = usual.predict_log_proba(X) - log_prior - adjusted.predict_log_proba(X)
    np.testing.assert_allclose(difference - difference.mean(1, keepdims=True), 0, atol=1e-6)
    costly = quick(loss="logit_adjusted", class_weight={"rarer": 100.0}).fit(X, y)
    assert np.mean(costly.predict(X) == "rarer") > 0.5 > np.mean(adjusted.predict(X) == "rarer")


def test_adjustment_needs_every_class_and_corrects_priors_once():
    X, y = rare(150, [0.7, 0.2, 0.1], seed=0)
    with pytest.raises(ValueError, match="rarer"):
        quick(loss="logit_adjusted").fit(X, y, sample_weight=y != "rarer")
    unseen = quick().fit(X, y, sample_weight=y != "rarer")
    assert unseen.predict_proba(X).shape == (150, 3)
    assert "rarer" not in unseen.predict(X)
    with pytest.raises(ValueError, match="class_weight"):
        quick(loss="logit_adjusted", class_weight="balanced").fit(X, y)


def test_weights_are_repetitions_for_every_setting():
    X, y = rare(60, [0.5, 0.3, 0.2], seed=0)
    counts = np.random.default_rng(0).integers(0, 4, 60)
    for setting in ({"loss": "logit_adjusted"}, {"class_weight": "balanced"}, {"class_weight": {"rare": 3.0}}):
        weighted = quick(**setting).fit(X, y, sample_weight=counts)
        repeated = quick(**setting).fit(X.repeat(counts, 0), y.repeat(counts))
        assert far_apart(weighted, repeated, X) < 1e-10


def test_their_unit_does_not_matter_and_zero_is_absence_in_small_batches_too():
    X, y = data()
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    fitted = quick(batch_size=16).fit(X, y, weight)
    assert far_apart(fitted, quick(batch_size=16).fit(X, y, 1e3 * weight), X) < 1e-10
    kept = weight > 0
    assert far_apart(fitted, quick(batch_size=16).fit(X[kept], y[kept], weight[kept]), X) == 0
