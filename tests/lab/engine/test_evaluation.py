import pytest
import torch
import torch.nn.functional as F

from maxsep.lab.data import ImageSet
from maxsep.lab.engine import evaluation
from maxsep.lab.engine.evaluation import Outputs, measure, predict
from maxsep.lab.engine.model import Pipeline
from maxsep.lab.networks import MLP


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
