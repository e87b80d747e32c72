"""On a GPU: the estimator is trained there, from the start and in the order of the CPU, and comes back to the CPU."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

from maxsep.sklearn import MaxSeparationClassifier

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.mark.parametrize("setting", [{}, {"loss": "logit_adjusted", "early_stopping": True, "patience": 100}])
def test_it_takes_the_path_of_the_cpu_and_comes_back(setting):
    X, y = load_iris(return_X_y=True)
    here, there = (
        MaxSeparationClassifier((16,), max_epochs=20, batch_size=32, device=device, random_state=0, **setting).fit(X, y)
        for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(there.loss_curve_, here.loss_curve_, atol=1e-9)
    np.testing.assert_allclose(there.predict_proba(X), here.predict_proba(X), atol=1e-9)
    assert all(tensor.device.type == "cpu" for tensor in there.module_.state_dict().values())
    assert b"cuda:" not in pickle.dumps(there)


def test_parts_go_on_there_with_their_momentum():
    X, y = load_iris(return_X_y=True)
    here, there = (MaxSeparationClassifier((16,), device=device, random_state=0) for device in ("cpu", "cuda"))
    for _ in range(5):
        for classifier in (here, there):
            classifier.partial_fit(X, y, classes=[0, 1, 2])
    np.testing.assert_allclose(there.predict_proba(X), here.predict_proba(X), atol=1e-9)
