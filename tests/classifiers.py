"""Classifiers that train within a second, data for them and the distance of two."""

import numpy as np
from sklearn.datasets import make_classification

from maxsep.sklearn import MaxSeparationClassifier

QUICK = {"hidden_layer_sizes": (8,), "max_epochs": 20, "optimiser": "sgd", "random_state": 0}


def quick(**parameters):
    return MaxSeparationClassifier(**QUICK | parameters)


def data(num_classes=4, rows=120, seed=0):
    return make_classification(
        rows, 6, n_informative=5, n_redundant=0, n_classes=num_classes, n_clusters_per_class=1, random_state=seed
    )


def far_apart(one, other, X):
    return np.abs(one.predict_proba(X) - other.predict_proba(X)).max()
