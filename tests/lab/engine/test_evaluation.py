import math

import pytest
import torch
import torch.nn.functional as F

from maxsep.lab.data import ImageSet
from maxsep.lab.engine import evaluation
from maxsep.lab.engine.evaluate import Outputs, known_ece, measure, predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.networks import MLP
from maxsep.lab.spec import RunSpec, options


def outputs(logits, labels):
    return Outputs(logits, logits, labels)


def test_metrics_are_those_of_a_hand_count():
    logits = torch.tensor([[9.0, 5, 4, 3, 2, 1], [1, 9, 5, 4, 3, 2], [9, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 9]])
    metrics = measure(outputs(logits, torch.tensor([0, 0, 5, 5])), F.cross_entropy)
    assert metrics["top1"] == 0.5
    assert metrics["top5"] == 0.5  # class 0 is last in row 1, class 5 is last in row 2
    assert metrics["per_class"] == [0.5, None, None, None, None, 0.5]
    assert metrics["balanced"] == 0.5
    # all four are sure to more than 14/15, so they share a bin: confidence against one half
    confidence = logits.softmax(1).max(1).values.mean().item()
    assert confidence > 14 / 15
    assert metrics["ece"] == pytest.approx(confidence - 0.5, abs=1e-6)
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, torch.tensor([0, 0, 5, 5])).item())


def test_balanced_accuracy_weighs_classes_not_images():
    logits = torch.tensor([[1.0, 0.0]] * 9 + [[1.0, 0.0]])
    metrics = measure(outputs(logits, torch.tensor([0] * 9 + [1])), F.cross_entropy)
    assert metrics["top1"] == 0.9
    assert metrics["balanced"] == 0.5


def test_three_classes_have_a_top_three():
    metrics = measure(outputs(torch.randn(20, 3), torch.randint(3, (20,))), F.cross_entropy)
    assert metrics["top5"] == 1.0


def test_prediction_covers_all_images_in_order_and_restores_the_mode(monkeypatch):
    torch.manual_seed(0)
    images = ImageSet(torch.randint(256, (25, 1, 8, 8), dtype=torch.uint8), torch.randint(3, (25,)), ("a", "b", "c"))
    pipeline = Pipeline(MLP(3, dropout=0.5), torch.zeros(1), torch.ones(1)).train()
    whole = predict(pipeline, images)
    monkeypatch.setattr(evaluation, "BATCH", 7)
    parts = predict(pipeline, images)
    assert pipeline.training
    assert pipeline.network.training
    torch.testing.assert_close(whole.logits, parts.logits)
    torch.testing.assert_close(pipeline.network.head(whole.features), whole.logits)
    assert not whole.logits.requires_grad


def test_the_calibration_error_is_that_of_the_scaled_logits():
    """Cosines 0.9 and 0.8: exp(27) / (exp(27) + exp(24)) = 1 / (1 + exp(-3)) = 0.9526, and three of four are right."""
    cosines = torch.tensor([[0.9, 0.8]] * 4)
    labels = torch.tensor([0, 0, 0, 1])
    metrics = measure(outputs(cosines, labels), F.cross_entropy, 30.0)
    assert metrics["ece"] == pytest.approx(1 / (1 + math.exp(-3)) - 0.75, abs=1e-5)
    assert metrics["softmax_scale"] == 30.0
    bare = measure(outputs(cosines, labels), F.cross_entropy)
    assert bare["ece"] == pytest.approx(0.75 - 1 / (1 + math.exp(-0.1)), abs=1e-5)
    assert bare["softmax_scale"] == 1.0
    assert [metrics[name] for name in ("top1", "loss", "per_class")] == [
        bare[name] for name in ("top1", "loss", "per_class")
    ]


@pytest.mark.parametrize(
    ("loss", "given", "metrics", "expected"),
    [
        ("cross_entropy", {}, {"ece": 0.1}, 0.1),
        ("cross_entropy", {}, {"ece": 0.1, "softmax_scale": 1.0}, 0.1),
        ("ldam", {}, {"ece": 0.1}, None),
        ("ldam", {}, {"ece": 0.1, "softmax_scale": 30.0}, 0.1),
        ("ldam", {"scale": 10.0}, {"ece": 0.1, "softmax_scale": 30.0}, None),
        ("ldam", {"scale": 1.0}, {"ece": 0.1}, 0.1),
        ("cross_entropy", {}, {}, None),
        ("cross_entropy", {}, {"ece": None}, None),
        ("cross_entropy", {}, {"ece": math.nan}, None),
    ],
)
def test_a_record_tells_only_the_calibration_error_of_its_own_probabilities(loss, given, metrics, expected):
    assert known_ece(RunSpec(loss=loss, loss_options=options(**given)), metrics) == expected
