"""The estimator: scikit-learn's own checks, the theorem in its predictions, and what surrounds it left alone."""

import subprocess
import sys
import tracemalloc
import warnings

import numpy as np
import pytest
import torch
from classifiers import data, far_apart, quick
from scipy import sparse
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn
from torch.nn import functional as F

from maxsep import heads
from maxsep.detect import energy
from maxsep.heads import Head, MaxSeparation
from maxsep.sklearn import MaxSeparationClassifier

# few epochs suffice for most properties
pytestmark = pytest.mark.filterwarnings("ignore:the training loss is still falling")


@parametrize_with_checks(
    [
        MaxSeparationClassifier(),
        MaxSeparationClassifier((), head="scaled", radius=0.5, loss="logit_adjusted", optimiser="sgd", max_epochs=150),
    ]
)
def test_it_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("num_classes", "radius"), [(2, 1.0), (3, 1.0), (3, 0.1), (3, 10.0)])
@pytest.mark.parametrize("hidden_layer_sizes", [(100,), ()])
@pytest.mark.parametrize("head", heads.names())
def test_every_head_learns_or_is_refused(head, hidden_layer_sizes, num_classes, radius):
    X, y = make_blobs(90, 6, centers=num_classes, random_state=0)
    is_fixed = not list(heads.build(head, 6, 3).parameters())
    refusal = ""
    try:
        score = quick(head=head, radius=radius, hidden_layer_sizes=hidden_layer_sizes).fit(X, y).score(X, y)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert num_classes == 2 or (is_fixed and hidden_layer_sizes == ())
        assert "num_classes" in refusal or head in refusal
    else:
        assert score > 0.9 or radius != 1


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


REFUSED = {
    "hidden_layer_sizes": [0, (0,), (2.5,), None],
    "radius": [0, -1.0, np.inf, np.nan, "1", None],
    "head": ["no such head", None],
    "class_weight": ["even", {0: -1}, {0: np.inf}, {7: 1.0}, 3],
    "batch_size": [0, "all", 2.0, None],
    "optimiser": ["lbfgs", None],
    "learning_rate": [0, "adaptive"],
    "momentum": [1, -0.1, "0.9"],
    "device": ["gpu0", "cuda:99", "meta", 1.5, None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, bad in REFUSED.items() for value in bad])
def test_bad_parameters(name, value):
    with pytest.raises((ValueError, TypeError, RuntimeError)) as refused:
        MaxSeparationClassifier(**{name: value}).fit([[0.0], [1.0]], [0, 1])
    assert name != "device" or (refused.type is not RuntimeError and "\n" not in str(refused.value))


def test_data_that_cannot_be_learned():
    for labels, weight in (([1, 1, 1], None), ([0, 1, 1], [0, 1, 1]), ([0, 1, 1], [0, 0, 0]), ([0, 1, 1], [1, 1, -1])):
        with pytest.raises(ValueError, match=r"class|weight"):
            quick().fit(np.zeros((3, 2)), labels, sample_weight=weight)


@pytest.mark.parametrize("setting", [{"learning_rate": 1e200}, {"learning_rate": 30.0}, {"learning_rate": 1e-9}])
def test_training_that_fails_is_reported_and_can_be_predicted_with(setting):
    X, y = data()
    with pytest.warns(ConvergenceWarning) as warned:
        classifier = quick(batch_size=16, **setting).fit(X, y)
    assert warned[0].filename == __file__
    assert np.isfinite(classifier.predict_proba(X)).all()
    assert np.isfinite(classifier.loss_curve_).all()


def test_too_few_epochs_are_reported():
    X, y = load_iris(return_X_y=True)
    with pytest.warns(ConvergenceWarning, match="still falling"):
        MaxSeparationClassifier((), random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MaxSeparationClassifier((), random_state=0, max_epochs=1000).fit(X, y)
        MaxSeparationClassifier(random_state=0).fit(X, y)


@pytest.mark.parametrize("setting", [{}, {"early_stopping": True, "batch_size": 16}, {"optimiser": "adam"}])
def test_sparse_features_give_the_results_of_dense_ones(setting, monkeypatch):
    monkeypatch.setattr("maxsep.sklearn.training.BLOCK", 300)  # several blocks of columns
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 20)) * (rng.random((90, 20)) < 0.2), rng.integers(0, 3, 90)
    dense = quick(**setting).fit(X, y, sample_weight=y + 1)
    for kind in (sparse.csr_array, sparse.csc_matrix, sparse.coo_array):
        fitted = quick(**setting).fit(kind(X), y, sample_weight=y + 1)
        np.testing.assert_allclose(fitted.predict_proba(kind(X)), dense.predict_proba(X), atol=1e-10)
        np.testing.assert_allclose(fitted.predict_proba(X), dense.predict_proba(X), atol=1e-10)
    parts = quick().partial_fit(sparse.csr_array(X), y, classes=[0, 1, 2])
    assert far_apart(parts, quick().partial_fit(X, y, classes=[0, 1, 2]), X) < 1e-10


def test_sparse_features_never_become_dense_at_once(monkeypatch):
    for module in ("training", "classifier"):
        monkeypatch.setattr(f"maxsep.sklearn.{module}.BLOCK", 2**19)  # 4 MB
    X = sparse.random_array((1000, 20_000), density=1e-3, rng=0, format="csr")  # 160 MB if it were dense
    y = np.arange(1000) % 2
    tracemalloc.start()
    classifier = quick(batch_size=50).partial_fit(X, y, classes=[0, 1])
    assert classifier.predict(X).shape == (1000,)
    peak = tracemalloc.get_traced_memory()[1]  # numpy's memory: every dense part passes through it
    tracemalloc.stop()
    assert peak < 40 * 2**20


def test_a_missing_scikit_learn_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import maxsep; import maxsep.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ".[sklearn]" in done.stderr.splitlines()[-1]


def test_the_loss_is_cross_entropy_of_the_logits():
    X, y = data()
    classifier = quick(max_epochs=1, learning_rate=1e-12).fit(X, y)  # what is measured before the only step
    logits = torch.tensor(classifier.decision_function(X))
    assert classifier.loss_curve_[0] == pytest.approx(F.cross_entropy(logits, torch.tensor(y)).item(), abs=1e-9)
