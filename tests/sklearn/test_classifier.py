"""The estimator: scikit-learn's own checks, the theorem in its predictions, and what surrounds it left alone."""

import copy
import pickle

import joblib
import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_blobs, make_classification
from sklearn.exceptions import NotFittedError
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn
from torch.nn import functional as F

from maxsep import heads
from maxsep.detect import energy
from maxsep.heads import Head, MaxSeparation
from maxsep.sklearn import MaxSeparationClassifier
from maxsep.sklearn import classifier as classifier_file


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


def test_with_early_stopping_only_weights_as_repetition_must_fail():
    """Which samples are held out is random, so the same samples with weights lead elsewhere; all else holds."""
    from sklearn.utils.estimator_checks import check_estimator

    reason = {"check_sample_weight_equivalence_on_dense_data": "what is held out is chosen among other samples"}
    told = check_estimator(
        MaxSeparationClassifier(early_stopping=True), expected_failed_checks=reason, on_skip=None, on_fail="raise"
    )
    assert {one["check_name"] for one in told if one["status"] == "xfail"} == set(reason)


# The theorem.


@pytest.mark.parametrize("radius", [1.0, 0.3])
@pytest.mark.parametrize("loss", ["cross_entropy", "logit_adjusted"])
@pytest.mark.parametrize("batch_size", ["auto", 32])
def test_twin_and_maxsep_coincide(radius, loss, batch_size):
    X, y = data()
    setting = {"radius": radius, "loss": loss, "batch_size": batch_size, "weight_decay": 1e-2}
    matrix, twin = (quick(head=head, **setting).fit(X, y) for head in ("maxsep", "twin"))
    np.testing.assert_allclose(matrix.decision_function(X), twin.decision_function(X), rtol=0, atol=1e-10)
    np.testing.assert_allclose(matrix.loss_curve_, twin.loss_curve_, rtol=0, atol=1e-10)
    assert far_apart(matrix, quick(head="scaled", **setting).fit(X, y), X) > 1e-3


def test_scaled_at_radius_1_is_plain_and_the_mean_logit_does_not_matter():
    X, y = data()
    plain, scaled, centred = (quick(head=head).fit(X, y) for head in ("plain", "scaled", "centred"))
    assert far_apart(plain, scaled, X) == 0
    assert far_apart(plain, centred, X) < 1e-12
    assert np.abs(centred.decision_function(X).sum(1)).max() < 1e-12 < np.abs(plain.decision_function(X).sum(1)).max()


@pytest.mark.parametrize("head", [name for name in heads.names() if name != "hpn"])
def test_every_head_learns(head):
    X, y = make_blobs(90, 6, centers=3, random_state=0)
    classifier = quick(head=head, hidden_layer_sizes=(16,)).fit(X, y)
    assert classifier.score(X, y) > (0.95 if head != "etf" else 0.6)  # behind a rectifier, etf reaches little
    assert classifier.loss_curve_[-1] < classifier.loss_curve_[0]


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
    told = (
        r"^loss='logit_adjusted' needs samples of every class with a positive weight, got none of 'rarer'\. "
        r"Leave the class out of y, or use loss='cross_entropy'\.$"
    )
    with pytest.raises(ValueError, match=told):
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


def test_labels_may_be_anything_in_any_order():
    X, y = data(3)
    numbers = quick().fit(X, y)
    for names in (["ant", "bee", "cow"], [-5, 7, 1000], [False, True]):
        chosen = y < len(names)
        labels = np.array(names)[y[chosen]]
        classifier = quick().fit(X[chosen], labels)
        assert classifier.classes_.tolist() == names
        assert set(classifier.predict(X)) <= set(names)
    order = np.random.default_rng(0).permutation(3)  # the classes come in the order of their names
    renamed = quick(hidden_layer_sizes=()).fit(X, order[y])
    assert np.mean(renamed.predict(X) == order[numbers.predict(X)]) > 0.8


def test_single_precision_stays_and_all_else_becomes_double():
    X, y = data()
    for dtype, kept in ((np.float32, torch.float32), (np.float64, torch.float64), (np.int32, torch.float64)):
        classifier = quick().fit((10 * X).astype(dtype), y)
        assert next(classifier.module_.parameters()).dtype == kept
    single, double = quick().fit(X.astype(np.float32), y), quick().fit(X, y)
    assert 0 < far_apart(single, double, X) < 1e-4  # they start from the same random numbers
    assert np.abs(single.predict_proba(X.astype(np.float32)).sum(1) - 1).max() < 1e-14


def test_frames_keep_their_names():
    pandas = pytest.importorskip("pandas")
    X, y = data()
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    classifier = quick().fit(frame, pandas.Series(y))
    assert classifier.feature_names_in_.tolist() == list("abcdef")
    np.testing.assert_array_equal(classifier.predict_proba(frame), quick().fit(X, y).predict_proba(X))
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[list("fedcba")])


def test_features_of_any_scale_and_place():
    X, y = data()
    moved = X * np.array([1e-6, 1, 1e6, 1, 1, 1]) + np.array([0, 1e6, 0, -300, 0, 0])
    constant = np.hstack([X, np.full((120, 1), 0.1)])
    expected = quick().fit(X, y).predict_proba(X)
    np.testing.assert_allclose(quick().fit(moved, y).predict_proba(moved), expected, atol=1e-6)
    assert np.isfinite(quick().fit(constant, y).predict_proba(constant)).all()


def test_large_inputs_are_predicted_in_parts(monkeypatch):
    X, y = data()
    classifier = quick().fit(X, y)
    whole = classifier.predict_proba(X)
    monkeypatch.setattr(classifier_file, "ROWS_AT_ONCE", 50)
    np.testing.assert_allclose(classifier.predict_proba(X), whole, rtol=0, atol=1e-14)


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


def test_what_is_unlike_the_training_data_scores_lower():
    X, y = make_blobs(300, 2, centers=[[-4, 0], [4, 0], [0, 6]], random_state=0)
    inside, between = X[200:], np.array([[0.0, 2.0]]) + 0.3 * np.random.default_rng(0).normal(size=(100, 2))
    classifier = quick(max_epochs=100, hidden_layer_sizes=(32,)).fit(X[:200], y[:200])
    scores = classifier.score_samples(np.vstack([inside, between]))
    assert roc_auc_score([1] * 100 + [0] * 100, scores) > 0.95


def test_unfitted():
    with pytest.raises(NotFittedError):
        quick().fold()
    with pytest.raises(NotFittedError):
        quick().score_samples(np.zeros((1, 2)))


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


def test_verbose_tells_every_epoch(capsys):
    X, y = data(rows=60)
    classifier = quick(max_epochs=2, verbose=True).fit(X, y)
    first, last = classifier.loss_curve_
    assert capsys.readouterr().out == f"epoch 1: loss {first:.4f}\nepoch 2: loss {last:.4f}\n"
    quick(max_epochs=1, verbose=True, early_stopping=True).fit(X, y)
    assert ", validation loss " in capsys.readouterr().out
    quick(max_epochs=1).fit(X, y)
    assert capsys.readouterr().out == ""


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


def test_a_first_part_of_one_row_says_what_to_do():
    X, y = data()
    with pytest.warns(UserWarning, match=r"fixes mean and scale .*Pass some hundred typical samples") as told:
        classifier = quick().partial_fit(X[:1], y[:1], classes=np.unique(y))
    assert told[0].filename == __file__, "the warning points at the caller"
    assert np.isfinite(classifier.predict_proba(X)).all()
    assert classifier.partial_fit(X[:1], y[:1]).n_iter_ == 2, "a later part may have one row, and is not warned of"


@pytest.mark.parametrize(
    ("setting", "given", "instead"),
    [
        ({"class_weight": "balanced"}, "class_weight='balanced'", "Pass a dict of weights, or sample_weight"),
        ({"loss": "logit_adjusted"}, "loss='logit_adjusted'", "Use 'cross_entropy' with sample_weight"),
        ({"early_stopping": True}, "early_stopping=True", "Turn it off"),
    ],
)
def test_what_needs_all_samples_has_no_parts(setting, given, instead):
    assert hasattr(quick(), "partial_fit")
    with pytest.raises(AttributeError, match="has no attribute 'partial_fit'") as raised:
        quick(**setting).partial_fit([[0.0], [1.0]], [0, 1], classes=[0, 1])
    told = f"partial_fit cannot have {given}, which needs all samples at once. {instead}, or call fit."
    assert str(raised.value.__cause__) == told


# In company.


def test_pipeline_grid_search_and_calibration():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    pipeline = make_pipeline(StandardScaler(), quick(hidden_layer_sizes=(16,)))
    grid = {"maxseparationclassifier__radius": np.array([1e-3, 1.0]), "maxseparationclassifier__head": ["maxsep"]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(X, names)
    assert search.best_params_["maxseparationclassifier__radius"] == 1.0
    assert search.best_score_ > 0.9
    calibrated = CalibratedClassifierCV(quick(), cv=3).fit(X, names)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1)
    assert calibrated.score(X, names) > 0.9


@pytest.mark.slow
def test_processes_agree():
    X, y = data()
    one, two = (cross_val_score(quick(), X, y, cv=2, n_jobs=jobs) for jobs in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_threads_do_not_share_random_numbers():
    X, y = data()
    alone = [quick(random_state=seed).fit(X, y).predict_proba(X) for seed in range(4)]
    work = (delayed(lambda seed: quick(random_state=seed).fit(X, y).predict_proba(X))(seed) for seed in range(4))
    for one, other in zip(alone, Parallel(n_jobs=4, backend="threading")(work), strict=True):
        np.testing.assert_array_equal(one, other)


def test_copies(tmp_path):
    X, y = data()
    classifier = quick().fit(X, y)
    joblib.dump(classifier, tmp_path / "classifier.joblib")
    for other in (
        pickle.loads(pickle.dumps(classifier)),
        copy.deepcopy(classifier),
        joblib.load(tmp_path / "classifier.joblib"),
        clone(classifier).fit(X, y),
    ):
        assert far_apart(classifier, other, X) == 0
    assert not hasattr(clone(classifier), "module_")


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
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
    ],
)
def test_it_does_not_matter_where_it_is_called(surroundings):
    X, y = data()
    expected = quick(early_stopping=True).fit(X, y)
    with surroundings():
        inside = quick(early_stopping=True).fit(X, y)
        proba = inside.predict_proba(X)
    np.testing.assert_array_equal(proba, expected.predict_proba(X))
    assert all(one.requires_grad and not one.is_inference() for one in inside.module_.parameters())


def test_the_default_dtype_does_not_matter():
    X, y = data()
    expected = quick().fit(X, y)
    torch.set_default_dtype(torch.float16)
    try:
        assert far_apart(expected, quick().fit(X, y), X) == 0
    finally:
        torch.set_default_dtype(torch.float32)


def test_inputs_are_not_changed():
    X, y = data()
    weight = np.ones(len(y))
    X.flags.writeable = y.flags.writeable = weight.flags.writeable = False
    quick(class_weight="balanced").fit(X, y, weight).predict(X[::-1])


# What it refuses.


def test_a_single_class_is_refused():
    told = (
        "^a classifier needs samples of at least 2 classes with a positive weight, got one class. "
        "Check y and the weights; for one-class problems use a detector.$"
    )
    with pytest.raises(ValueError, match=told):
        quick().fit(np.zeros((3, 2)), [1, 1, 1])
    with pytest.raises(ValueError, match=told):
        quick().fit(np.zeros((3, 2)), [0, 1, 1], sample_weight=[0, 1, 1])


def test_divergence_is_told():
    X, y = data()
    told = (
        r"^training diverged: the loss is (nan|inf) in epoch \d+, at learning_rate=1e\+200 and radius=1.0. "
        r"Lower the learning rate, or look for extreme values in X.$"
    )
    with pytest.raises(ValueError, match=told):
        quick(learning_rate=1e200).fit(X, y)


def test_a_network_without_parameters_is_refused():
    X, y = data()
    told = (
        r"^the head 'etf' trains nothing, and neither does hidden_layer_sizes=\(\). "
        "Give the network a hidden layer, or take the head 'maxsep'.$"
    )
    with pytest.raises(ValueError, match=told):
        quick(head="etf", hidden_layer_sizes=()).fit(X, y)


def test_what_a_head_refuses_is_told_by_it():
    X, y = data()
    with pytest.raises(ValueError, match=r"the plain head has no radius, got 0.1. Use the head 'scaled'"):
        quick(head="plain", radius=0.1).fit(X, y)


def test_the_loss_is_cross_entropy_of_the_logits():
    X, y = data()
    classifier = quick(max_epochs=1, learning_rate=1e-12).fit(X, y)  # what is measured before the only step
    logits = torch.tensor(classifier.decision_function(X))
    assert classifier.loss_curve_[0] == pytest.approx(F.cross_entropy(logits, torch.tensor(y)).item(), abs=1e-9)
