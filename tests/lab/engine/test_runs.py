import json
import shutil

import pytest
import torch

from maxsep.lab.data import prepare
from maxsep.lab.engine import evaluate, load_model, train
from maxsep.lab.engine.evaluate import check_classes
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution, RunSpec

SPEC = RunSpec(epochs=2, head="maxsep", radius=0.5, max_train=400, max_test=150)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return train(SPEC, runs=tmp_path_factory.mktemp("runs"), execution=Execution(device="cpu"), progress=False)


def test_a_run_is_read_back(folder):
    run = Run(folder)
    assert run.spec == SPEC
    assert run.folder == folder
    assert [row["epoch"] for row in run.history] == [0, 1]
    assert run.metrics["top1"] == run.history[-1]["top1"]
    assert run.preprocessing["shape"] == [1, 8, 8]
    assert len(run.preprocessing["classes"]) == 10
    assert run.result["versions"]["torch"] == torch.__version__


def test_the_model_is_rebuilt_and_scores_the_same(folder):
    state = torch.get_rng_state()
    model, spec = load_model(folder)
    assert torch.equal(state, torch.get_rng_state())
    assert spec == SPEC
    assert not model.training
    metrics = evaluate(folder)
    told = Run(folder).metrics
    for name in ("top1", "top5", "balanced", "per_class", "loss", "ece", "angular_fisher"):
        assert metrics[name] == pytest.approx(told[name])


def test_a_torn_line_does_not_hide_a_finished_run(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "train')
    assert Run(copy).history == Run(folder).history


def test_a_run_with_ldam_is_calibrated_and_says_by_which_scale(tmp_path):
    spec = RunSpec(head="cosine", loss="ldam", epochs=10, batch_size=64)
    folder = train(spec, runs=tmp_path, execution=Execution(device="cpu"), progress=False)
    told = json.loads((folder / "result.json").read_text())["metrics"]
    assert told["top1"] > 0.9
    assert told["ece"] < 0.1, "of the bare cosines it is above one half"
    assert told["softmax_scale"] == 30.0
    again = evaluate(folder)
    assert (again["ece"], again["softmax_scale"]) == (pytest.approx(told["ece"], abs=1e-5), 30.0)
    assert Run(folder).history[-1]["ece"] == told["ece"]


def test_what_belongs_to_the_weights_is_what_the_run_recorded(folder, tmp_path):
    """Mean, std and the counts of classes of a changed record show, whatever the data say."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    record = json.loads((copy / "result.json").read_text())
    record["preprocessing"]["mean"] = [0.9]
    (copy / "result.json").write_text(json.dumps(record))
    assert evaluate(copy)["loss"] != pytest.approx(evaluate(folder)["loss"], abs=1e-3)
    record["preprocessing"]["mean"] = Run(folder).preprocessing["mean"]
    record["spec"]["loss"] = "logit_adjusted"
    record["metrics"]["class_counts"] = [1] * 10
    (copy / "result.json").write_text(json.dumps(record))
    assert evaluate(copy)["loss"] == pytest.approx(evaluate(folder)["loss"]), "equal classes: cross-entropy"
    record["metrics"]["class_counts"] = [1000] + [1] * 9
    (copy / "result.json").write_text(json.dumps(record))
    assert evaluate(copy)["loss"] != pytest.approx(evaluate(folder)["loss"], abs=1e-3)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"classes": [f"digit {i}" for i in range(10)]},
            r"digits has other classes than .*copy: 0, 1, 2, 3, 4, \.\.\., ",
        ),
        (
            {"classes": ["1", "0", *map(str, range(2, 10))]},
            r"not 1, 0, 2, 3, 4, \.\.\.\. Evaluate it on the data that it",
        ),
        ({"shape": [1, 9, 9]}, r"digits has other images than .*copy: 1 x 8 x 8, not 1 x 9 x 9\. Evaluate"),
    ],
)
def test_data_of_other_classes_or_images_are_refused(folder, tmp_path, changed, told):
    run = Run(folder)
    expected = run.preprocessing | changed
    with pytest.raises(ValueError, match=told):
        check_classes(
            prepare(SPEC), expected["classes"], expected["shape"], tmp_path / "copy",
            "Evaluate it on the data that it was trained on.",
        )  # fmt: skip
    check_classes(prepare(SPEC), run.preprocessing["classes"], run.preprocessing["shape"], folder, "")
