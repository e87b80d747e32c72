"""lab/detection/judge.py: any scorer's images are measured in one way."""

from pathlib import Path

import pytest
import torch

from maxsep.lab.data import Dataset
from maxsep.lab.detection.judge import Wish, full_precision, judge, read_outliers
from maxsep.lab.spec import RunSpec

WISH = {"mahalanobis": False, "repeats": 0}


@pytest.fixture(scope="module")
def noise(noise_of):
    return noise_of(12)


def by_brightness(images):
    """A scorer that finds dark images known, at two input steps, and class 0 in all of them."""
    score = -images.images.double().mean((1, 2, 3))
    names = ("max_softmax", "max_logit", "energy", "max_logit_centred", "energy_centred")
    logits = torch.nn.functional.one_hot(torch.zeros(len(images), dtype=torch.int64), 10).double()
    return dict.fromkeys(names, score), {0.0: score, 0.01: -score}, logits


def test_known_images_stand_against_outliers(noise):
    stages, data = [], Dataset.parse("digits").read()
    told = judge(RunSpec(), by_brightness, data, Wish(outliers=(noise,), **WISH), None, stages.append)
    assert stages == [f"scoring {len(data.test)} test images", "scoring 12 outliers"]
    known, outside = (
        -images.images.double().mean((1, 2, 3))
        for images in (data.test, read_outliers(noise, None, "digits", (1, 8, 8))[0])
    )
    exact = ((known[:, None] > outside).double() + (known[:, None] == outside).double() / 2).mean().item()
    found = told["sets"][noise]
    assert found["scores"]["energy"]["full"]["auroc"] == pytest.approx(exact)
    assert found["sweep"]["0"]["auroc"] == pytest.approx(exact)
    assert found["sweep"]["0.01"]["auroc"] == pytest.approx(1 - exact)
    zeros = (data.test.labels == 0).double().mean().item()
    assert told["in_distribution"] == {"dataset": "digits", "count": len(data.test), "top1": pytest.approx(zeros)}
    assert (found["count"], found["unreadable"], told["softmax_scale"]) == (12, [], 1.0)


def test_the_record_says_how_the_loss_scales_logits_and_how_many_images_the_run_takes(noise):
    spec = RunSpec(loss="ldam", head="cosine", max_test=5)
    told = judge(
        spec, by_brightness, Dataset.parse("digits").read(), Wish(outliers=(noise,), **WISH), None, lambda stage: None
    )
    assert told["softmax_scale"] == 30.0
    assert told["sets"][noise]["count"] == 5


def test_files_that_are_no_images_are_named(noise_of):
    noise = noise_of(3)
    broken = Path(noise.removeprefix("folder:")) / "broken.png"
    broken.write_bytes(b"no image")
    told = judge(
        RunSpec(),
        by_brightness,
        Dataset.parse("digits").read(),
        Wish(outliers=(noise,), **WISH),
        None,
        lambda stage: None,
    )
    (problem,) = told["sets"][noise]["unreadable"]
    assert problem["path"] == str(broken)
    assert told["sets"][noise]["count"] == 3


def test_outliers_must_be_named_unless_the_run_has_unknown_classes():
    assert Wish().sets("osr_cifar10_0") == ("unknown",)
    with pytest.raises(
        ValueError, match="name some outliers: 'digits' is no open-set split, so it has none of its own"
    ):
        Wish().sets("digits")


@pytest.mark.parametrize("before", [True, False])
def test_full_precision_lasts_as_long_as_its_block(before, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", before)
    with full_precision():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
