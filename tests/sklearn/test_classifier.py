"""The estimator: scikit-learn's own checks, the theorem in its predictions, and what surrounds it left alone."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, make_blobs, make_classification
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn
from torch.nn import functional as F

from maxsep import heads
from maxsep.detect import energy
from maxsep.heads import Head, MaxSeparation
from maxsep.sklearn import MaxSeparationClassifier


def quick(**parameters):
    return MaxSeparationClassifier(**{"hidden_layer_sizes": (8,), "max_epochs": 20, "random_state": 0} | parameters)


def data(num_classes=4, rows=120, seed=0):
    return make_classification(
        rows, 6, n_informative=5, n_redundant=0, n_classes=num_classes, n_clusters_per_class=1, random_state=seed
    )


def far_apart(one, other, X):
    return np.abs(one.predict_proba(X) - other.predict_proba(X)).max()


@parametrize_with_checks(
    [
        MaxSeparationClassifier(),
        MaxSeparationClassifier((), head="scaled", radius=0.5, loss="logit_adjusted", max_epochs=150),
    ]
)
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


# Heads.


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("hidden_layer_sizes", [(100,), ()])
@pytest.mark.parametrize("head", heads.names())
def test_every_head_learns_or_is_refused(head, hidden_layer_sizes, num_classes):
    X, y = make_blobs(90, 6, centers=num_classes, random_state=0)
    is_fixed = not list(heads.build(head, 6, 3).parameters())
    refusal = ""
    try:
        score = quick(head=head, hidden_layer_sizes=hidden_layer_sizes).fit(X, y).score(X, y)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert num_classes == 2 or (is_fixed and hidden_layer_sizes == ())
        assert "num_classes" in refusal or head in refusal
    else:
        assert score > 0.9


# Imbalanced classes.


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


def test_adjustment_needs_every_class():
    X, y = rare(150, [0.7, 0.2, 0.1], seed=0)
    with pytest.raises(ValueError, match="rarer"):
        quick(loss="logit_adjusted").fit(X, y, sample_weight=y != "rarer")
    unseen = quick().fit(X, y, sample_weight=y != "rarer")
    assert unseen.predict_proba(X).shape == (150, 3)
    assert "rarer" not in unseen.predict(X)


# Weights.


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


# What it gives.


def test_outputs_belong_together():
    X, y = data()
    classifier = quick().fit(X, y)
    logits, proba = classifier.decision_function(X), classifier.predict_proba(X)
    assert logits.shape == proba.shape == (120, 4)
    assert logits.dtype == proba.dtype == np.float64
    np.testing.assert_allclose(proba.sum(1), 1, rtol=0, atol=1e-15 * 8)
    np.testing.assert_allclose(np.log(proba), classifier.predict_log_proba(X), atol=1e-12)
    np.testing.assert_allclose(torch.tensor(logits).softmax(1).numpy(), proba, atol=1e-15)
    assert (classifier.classes_[logits.argmax(1)] == classifier.predict(X)).all()
    np.testing.assert_allclose(classifier.score_samples(X), energy(torch.tensor(logits)).numpy())
    assert classifier.n_iter_ == len(classifier.loss_curve_) == 20
    assert classifier.validation_curve_ is None


def test_two_classes_have_one_column_of_decisions():
    X, y = data(2)
    classifier = quick().fit(X, y)
    decision = classifier.decision_function(X)
    assert decision.shape == (120,)
    np.testing.assert_allclose(1 / (1 + np.exp(-decision)), classifier.predict_proba(X)[:, 1], atol=1e-12)
    assert ((decision > 0) == (classifier.predict(X) == 1)).all()


def test_single_precision_stays_and_all_else_becomes_double():
    X, y = data()
    for dtype, kept in ((np.float32, torch.float32), (np.float64, torch.float64), (np.int32, torch.float64)):
        classifier = quick().fit((10 * X).astype(dtype), y)
        assert next(classifier.module_.parameters()).dtype == kept
    single, double = quick().fit(X.astype(np.float32), y), quick().fit(X, y)
    assert 0 < far_apart(single, double, X) < 1e-4  # they start from the same random numbers
    assert np.abs(single.predict_proba(X.astype(np.float32)).sum(1) - 1).max() < 1e-14


@pytest.mark.parametrize(
    ("dtype", "factor"), [(np.float32, 1e20), (np.float32, 1e-30), (np.float64, 1e200), (np.float64, 1e-200)]
)
def test_features_whose_variance_leaves_their_precision(dtype, factor):
    X, y = load_iris(return_X_y=True)
    expected = quick().fit(X, y)
    scaled = (X * factor).astype(dtype)
    classifier = quick().fit(scaled, y)
    np.testing.assert_allclose(classifier.predict_proba(scaled), expected.predict_proba(X), atol=1e-4)
    assert next(classifier.module_[1].parameters()).dtype == (torch.float32 if dtype == np.float32 else torch.float64)


def test_features_of_any_scale_and_offset():
    X, y = data()
    expected = quick().fit(X, y).predict_proba(X)
    moved = X * np.array([1e-6, 1, 1e6, 1, 1, 1]) + np.array([0, 1e6, 0, -300, 0, 0])
    np.testing.assert_allclose(quick().fit(moved, y).predict_proba(moved), expected, atol=1e-6)
    constant = np.hstack([X, np.tile(np.linspace(0.1, 0.9, 30), (120, 1))])  # some means are rounded
    standardise = quick().fit(constant, y).module_[0]
    assert abs(standardise(torch.tensor(constant))[:, 6:]).max() < 1e-9


def test_standardisation_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    X, weight = rng.normal(3, 7, (50, 4)), rng.uniform(0.1, 2, 50)
    standardise = quick().fit(X, rng.integers(0, 2, 50), sample_weight=weight).module_[0]
    expected = StandardScaler().fit(X, sample_weight=weight).transform(X)
    np.testing.assert_allclose(standardise(torch.tensor(X)).numpy(), expected, atol=1e-12)


def test_the_module_and_what_it_folds_to():
    X, y = data()
    for setting in ({}, {"hidden_layer_sizes": ()}, {"hidden_layer_sizes": (8, 5), "head": "maxsep_cosine"}):
        classifier = quick(**setting).fit(X, y)
        plain = classifier.fold()
        assert not any(isinstance(module, Head | MaxSeparation) for module in plain.modules())
        assert not plain.training
        for module in (classifier.module_, plain):
            logits = module(torch.tensor(X)).detach().numpy()
            np.testing.assert_allclose(logits, classifier.decision_function(X), atol=1e-10)
    assert isinstance(quick(hidden_layer_sizes=[7]).fit(X, y).fold()[1], nn.Linear)


# Early stopping.


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


# In parts.


def test_parts_go_on_with_weights_momentum_and_order():
    X, y = data()
    for batch_size in ("auto", 16):
        whole = quick(max_epochs=5, batch_size=batch_size).fit(X, y)
        parts = quick(batch_size=batch_size)
        for _ in range(5):
            parts.partial_fit(X, y, classes=np.unique(y))
            parts = pickle.loads(pickle.dumps(parts))
        assert far_apart(whole, parts, X) == 0
        assert parts.loss_curve_ == whole.loss_curve_
        assert parts.n_iter_ == 5


def test_parts_may_lack_classes_and_parameters_may_change():
    X, y = data()
    few = y < 2
    classifier = quick().partial_fit(X[few], y[few], classes=[3, 2, 1, 0])
    assert classifier.predict_proba(X).shape == (120, 4)
    before = copy.deepcopy(classifier.module_[1].weight)
    classifier.set_params(learning_rate=1e-9, momentum=0.0).partial_fit(X, y)
    assert 0 < (classifier.module_[1].weight - before).abs().max() < 1e-6
    assert classifier.partial_fit(X[y == 3], y[y == 3]).n_iter_ == 3  # one class alone, in a later call
    assert classifier.fit(X, y).n_iter_ == 20  # starts anew


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


# What surrounds it.


def test_seeds_decide_and_torch_is_left_alone():
    X, y = data()
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # the global generator is what must not matter
    settings = (torch.get_num_threads, torch.is_grad_enabled, torch.get_default_dtype, torch.get_default_device)
    before, state, numbers = [one() for one in settings], torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    first = quick().fit(X, y)
    first.predict(X)
    assert torch.get_rng_state().equal(state)
    assert (np.random.get_state()[1] == numbers).all()  # noqa: NPY002
    assert [one() for one in settings] == before
    torch.manual_seed(2)
    assert far_apart(first, quick().fit(X, y), X) == 0
    assert far_apart(first, quick(random_state=np.random.RandomState(0)).fit(X, y), X) == 0
    assert far_apart(first, quick(random_state=1).fit(X, y), X) > 1e-3


@pytest.mark.parametrize(
    "surroundings",
    [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.device("meta")],
)
def test_it_does_not_matter_where_it_is_called(surroundings):
    X, y = data()
    expected = quick(early_stopping=True).fit(X, y)
    with surroundings():
        inside = quick(early_stopping=True).fit(X, y)
        proba = inside.predict_proba(X)
    np.testing.assert_array_equal(proba, expected.predict_proba(X))
    assert all(one.requires_grad and not one.is_inference() for one in inside.module_[1:].parameters())


# What it refuses.


REFUSED = {
    "hidden_layer_sizes": [100, (0,), (2.5,), None],
    "radius": [0, -1.0, np.inf, np.nan, "1", None],
    "head": ["no such head", None],
    "class_weight": ["even", {0: -1}, {0: np.inf}, {7: 1.0}, 3],
    "batch_size": [0, "all", 2.0, None],
    "momentum": [1, -0.1, "0.9"],
    "device": ["gpu0", 1.5, None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, bad in REFUSED.items() for value in bad])
def test_bad_parameters(name, value):
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        MaxSeparationClassifier(**{name: value}).fit([[0.0], [1.0]], [0, 1])


def test_data_that_cannot_be_learned():
    X, y = data()
    for labels, weight in (([1, 1, 1], None), ([0, 1, 1], [0, 1, 1]), ([0, 1, 1], [0, 0, 0]), ([0, 1, 1], [1, 1, -1])):
        with pytest.raises(ValueError, match=r"class|weight"):
            quick().fit(np.zeros((3, 2)), labels, sample_weight=weight)
    with pytest.raises(ValueError, match="diverged"):
        quick(learning_rate=1e200).fit(X, y)


def test_a_missing_scikit_learn_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import maxsep; import maxsep.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "maxsep[sklearn]" in done.stderr.splitlines()[-1]


def test_the_loss_is_cross_entropy_of_the_logits():
    X, y = data()
    classifier = quick(max_epochs=1, learning_rate=1e-12).fit(X, y)  # what is measured before the only step
    logits = torch.tensor(classifier.decision_function(X))
    assert classifier.loss_curve_[0] == pytest.approx(F.cross_entropy(logits, torch.tensor(y)).item(), abs=1e-9)
