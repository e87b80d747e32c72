"""Watching features while a run is trained: it sees what evaluation sees, and training does not notice."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from maxsep.lab.data import load_outliers, normalisation, prepare
from maxsep.lab.engine import load_model, train
from maxsep.lab.engine.train import check_names
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

SPEC = RunSpec(dataset="osr_cifar10_0", network="mlp", head="plain", epochs=3, batch_size=32, normalisation="cifar10")
WATCHED = SPEC.replace(features_at=(1, 3))


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny_cifar):
    return tiny_cifar(tmp_path_factory.mktemp("data"), images=20)


@pytest.fixture(scope="module")
def watched(root, tmp_path_factory):
    return train(WATCHED, data_root=root, runs=tmp_path_factory.mktemp("watched"), progress=False)


def test_training_does_not_notice(root, watched, tmp_path):
    plain = train(SPEC, data_root=root, runs=tmp_path, progress=False)
    ours, theirs = (load_file(folder / "weights.safetensors") for folder in (watched, plain))
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert not (plain / "features.json").exists()
    assert "norm_known" not in (plain / "metrics.jsonl").read_text()


def test_norms_of_every_epoch_and_points_of_some(root, watched):
    history = Run(watched).history
    assert all(row["norm_known"] > 0 < row["norm_unknown"] for row in history)
    record = json.loads((watched / "features.json").read_text())
    assert list(record["epochs"]) == ["1", "3"]
    assert record["classes"] == [f"class {i}" for i in (0, 6, 4, 9, 1, 7)]
    network, _ = load_model(watched)
    data = prepare(WATCHED, root)
    mean, std = normalisation("cifar10", data)
    unknown = load_outliers("unknown", root, like=WATCHED.dataset)
    for images, side, norm in ((data.test, "known", "norm_known"), (unknown, "unknown", "norm_unknown")):
        features = network.features((images.images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)).detach()
        assert history[-1][norm] == pytest.approx(features.norm(dim=1).mean().item(), rel=1e-5)
        assert np.allclose(record["epochs"]["3"][side], features, atol=1e-3)
    assert record["epochs"]["3"]["labels"] == data.test.labels.tolist()


def test_limits_hold_for_unknown_images_too(root, tmp_path):
    folder = train(WATCHED.replace(max_train=12, max_test=6), data_root=root, runs=tmp_path, progress=False)
    found = json.loads((folder / "features.json").read_text())["epochs"]["1"]
    assert (len(found["known"]), len(found["unknown"])) == (6, 6)


def test_old_names_stay_and_nonsense_is_refused():
    assert "features_at" not in SPEC._told()
    assert RunSpec.from_dict(WATCHED.to_dict()) == WATCHED
    with pytest.raises(ValueError, match=r"features_at must be epochs, counted from 1, got \(0,\)"):
        SPEC.replace(features_at=(0,))
    with pytest.raises(ValueError, match=r"'digits' has no unknown ones. Train on an open-set split"):
        check_names(RunSpec(features_at=(1,)))
