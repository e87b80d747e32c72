import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from maxsep import detect
from maxsep.lab.data import Dataset
from maxsep.lab.serving import Prediction, Unreadable, find_images, open_classifier, predictions

IMAGES = Dataset.parse("digits").read().test.images[:40]


@pytest.fixture(scope="module")
def classifier(run):
    return open_classifier(run, "cpu")


@pytest.fixture(scope="module")
def paths(pictures):
    return find_images([pictures])[0]


@pytest.mark.parametrize("score", ["max_logit", "max_softmax", "energy"])
def test_files_give_what_the_same_images_give_in_memory(classifier, paths, score):
    logits = classifier.logits(IMAGES)
    probabilities = logits.double().softmax(1)
    scores = getattr(detect, score)(logits)
    threshold = scores.median().item()
    found = list(predictions(classifier, paths, score=score, threshold=threshold, top=3))
    assert [answer.path for answer in found] == paths
    for answer, row, expected in zip(found, probabilities, scores.tolist(), strict=True):
        order = row.argsort(descending=True)[:3].tolist()
        assert [name for name, _ in answer.top] == [classifier.labels[index] for index in order]
        assert [share for _, share in answer.top] == pytest.approx(row[order].tolist())
        assert answer.score == pytest.approx(expected)
        assert answer.unknown == (expected < threshold)
    assert 0 < sum(answer.unknown for answer in found) < len(found)


def test_an_image_at_the_threshold_is_known(classifier, paths):
    (first,) = predictions(classifier, paths[:1])
    (again,) = predictions(classifier, paths[:1], threshold=first.score)
    assert again.unknown is False
    (again,) = predictions(classifier, paths[:1], threshold=math.nextafter(first.score, math.inf))
    assert again.unknown is True


def test_a_score_that_is_no_number_is_not_taken_for_known(classifier, paths, monkeypatch):
    monkeypatch.setattr(type(classifier), "scores", lambda self, score, logits: torch.full((len(logits),), math.nan))
    (answer,) = predictions(classifier, paths[:1], threshold=-1e30)
    assert answer.unknown is True


def test_without_a_threshold_nothing_is_known_or_unknown(classifier, paths):
    assert {answer.unknown for answer in predictions(classifier, paths[:5])} == {None}


def test_batches_do_not_show(classifier, paths, monkeypatch, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no")
    mixed = [*paths[:3], broken, *paths[3:8], Path("gone.png")]
    whole = list(predictions(classifier, mixed, top=99))
    monkeypatch.setattr(import_module("maxsep.lab.serving.predictions"), "BATCH", 4)
    parts = list(predictions(classifier, mixed, top=99))
    for one, other in zip(whole, parts, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Prediction):
            assert (one.path, len(one.top)) == (other.path, 10)
            assert one.score == pytest.approx(other.score, abs=1e-5)
        else:
            assert one == other
    assert [position for position, answer in enumerate(whole) if isinstance(answer, Unreadable)] == [3, 9]
    assert "broken.png cannot be read as an image" in whole[3].reason


def test_deep_images_are_told_once_over_all_batches(classifier, monkeypatch, tmp_path):
    monkeypatch.setattr(import_module("maxsep.lab.serving.predictions"), "BATCH", 2)
    deep = [tmp_path / f"{i}.ppm" for i in range(5)]
    for path in deep:
        path.write_bytes(b"P6 8 8 65535 " + bytes(8 * 8 * 3 * 2))
    with pytest.warns(UserWarning, match=r"0.ppm and 4 other images have more than 8 bits per channel") as found:
        assert len(list(predictions(classifier, deep))) == 5
    assert len(found) == 1


def test_probabilities_sum_to_one(classifier, paths):
    (answer,) = predictions(classifier, paths[:1], top=10)
    assert sum(share for _, share in answer.top) == pytest.approx(1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"score": "odin"}, "unknown score 'odin'. Known: max_logit, max_softmax, energy"),
        ({"threshold": math.nan}, "threshold must be a finite number, got nan. It is on the scale of max_logit"),
        ({"top": 0}, "top must be at least 1, got 0"),
    ],
)
def test_bad_requests_are_told_before_an_image_is_read(classifier, options, told):
    with pytest.raises(ValueError, match=told):
        predictions(classifier, [Path("gone.png")], **options)


def test_images_of_two_channels_are_no_files(classifier):
    with pytest.raises(ValueError, match=r"1 channel \(grey\) or 3 \(RGB\), and the images here have 2"):
        list(predictions(replace(classifier, shape=(2, 8, 8), mean=torch.zeros(2)), [Path("a.png")]))


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_scaled_cosines_have_the_same_probabilities_before_and_after_export(ldam, paths, format):
    run, exported = ldam
    ours, theirs = open_classifier(run, "cpu"), open_classifier(exported[format], "cpu")
    by_hand = torch.exp(30 * ours.logits(IMAGES).double())
    by_hand = (by_hand / by_hand.sum(1, keepdim=True)).max(1).values.tolist()
    for score in ("max_logit", "max_softmax", "energy"):
        limit = ours.threshold(score)
        assert theirs.threshold(score) == limit
        found = [list(predictions(which, paths, score=score, threshold=limit)) for which in (ours, theirs)]
        for one, other, expected in zip(*found, by_hand, strict=True):
            assert one.top[0][1] == pytest.approx(expected, abs=1e-6)
            assert other.top[0] == (one.top[0][0], pytest.approx(one.top[0][1], abs=1e-4))
            assert other.score == pytest.approx(one.score, abs=1e-4)
            if score == "max_softmax":
                assert one.score == pytest.approx(one.top[0][1])
        assert sum(answer.unknown for answer in found[0]) < 10
    assert sum(by_hand) / len(by_hand) > 0.8, "of the bare cosines it is near one fifth"
