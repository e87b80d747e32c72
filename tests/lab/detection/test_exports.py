"""Detection with an export is that of its run, as far as logits go."""

import pytest

from maxsep.lab.detection import Wish, detect, detect_export
from maxsep.lab.engine import train
from maxsep.lab.serving import export, export_data, open_classifier
from maxsep.lab.spec import Execution, RunSpec

CHEAP = {"mahalanobis": False, "draw": 15, "repeats": 2}


@pytest.fixture(scope="module")
def noise(noise_of):
    return noise_of(20)


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
@pytest.mark.parametrize("loss", ["cross_entropy", "ldam"])
def test_the_record_is_that_of_the_run(tmp_path, noise, format, loss):
    spec = RunSpec(head="cosine", loss=loss, epochs=2, batch_size=64, max_test=200)
    run = train(spec, runs=tmp_path, execution=Execution(device="cpu"), progress=False)
    classifier, wish, stages = (
        open_classifier(export(run, tmp_path / "model", format), "cpu"),
        Wish(outliers=(noise,), **CHEAP),
        [],
    )
    ours = detect_export(classifier, export_data(classifier), wish, tell=stages.append)
    theirs = detect(run, wish, device="cpu")
    assert stages == ["scoring 200 test images", "scoring 20 outliers"]
    assert list(ours) == list(theirs)
    for name in set(ours) - {"sets", "in_distribution"}:
        assert ours[name] == theirs[name]
    assert ours["in_distribution"]["top1"] == pytest.approx(theirs["in_distribution"]["top1"], abs=1e-9)
    one, other = ours["sets"][noise], theirs["sets"][noise]
    assert list(one) == list(other)
    assert one["histograms"]["energy"]["gap"] == pytest.approx(other["histograms"]["energy"]["gap"], abs=1e-4)
    assert set(one["scores"]) == set(wish.scores) == set(other["scores"])
    for score, told in one["scores"].items():
        # two images whose scores differ in the last bits only may change places
        assert told["full"]["auroc"] == pytest.approx(other["scores"][score]["full"]["auroc"], abs=1e-3)
        assert told["draws"]["repeats"] == 2


@pytest.mark.parametrize("wanted", [{"mahalanobis": True}, {"odin": True}])
def test_what_needs_more_than_logits_is_refused(tmp_path, noise, wanted):
    run = train(RunSpec(epochs=1), runs=tmp_path, execution=Execution(device="cpu"), progress=False)
    classifier = open_classifier(export(run, tmp_path / "model"), "cpu")
    wish = Wish(outliers=(noise,), **(CHEAP | wanted))
    with pytest.raises(ValueError, match=r"model gives logits, not the features or gradients .* ask the run"):
        detect_export(classifier, export_data(classifier), wish)
