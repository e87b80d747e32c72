"""The step that measures detection: what it needs, and what it leaves alone."""

import json

import pytest

from maxsep.lab.ood import OODProtocol
from maxsep.lab.recipes.after import Detect
from maxsep.lab.run import Run
from maxsep.lab.spec import RunSpec

STEP = Detect(OODProtocol(outliers=("places",)))


def make(runs, spec, *files, **record):
    run = Run(runs / spec.name)
    run.begin(spec)
    scores = {name: {"full": {"auroc": 0.5}, "draws": {"repeats": 10}} for name in STEP.protocol.scores}
    base = {"schema": 1, "in_distribution": {"dataset": "digits"}, "sets": {"places": {"scores": scores}}}
    base["mahalanobis"] = {"magnitudes": list(STEP.protocol.magnitudes)}
    (run.folder / "detection.json").write_text(json.dumps(base | record))
    for name in files:
        (run.folder / name).write_text(json.dumps({"spec": spec.to_dict(), "metrics": {}}))
    return Run(run.folder)


@pytest.mark.parametrize(
    ("spec", "record", "is_done"),
    [
        (RunSpec(), {}, True),
        (RunSpec(), {"sets": {}}, False),
        (RunSpec(loss="ldam", head="cosine"), {}, False),  # scored with the probabilities of another scale
        (RunSpec(loss="ldam", head="cosine"), {"softmax_scale": 30.0}, True),
    ],
)
def test_what_is_there_is_left_alone(tmp_path, spec, record, is_done):
    run = make(tmp_path, spec, "result.json", **record)
    assert STEP.is_done(run) == is_done
    if is_done:
        STEP.check([spec], tmp_path, tmp_path, download=False)  # nothing is needed, so nothing is missing


def test_missing_weights_are_noted_and_missing_outliers_are_an_error_before_training(tmp_path):
    run = make(tmp_path, RunSpec(), "result.json")
    assert "weights" in STEP(run, data_root=None, device="cpu")
    with pytest.raises(FileNotFoundError, match="places"):
        STEP.check([RunSpec(seed=1)], tmp_path, tmp_path, download=False)
