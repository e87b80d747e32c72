"""Models inside LightningModule and AveragedModel, which hold no references to parameters."""

import lightning
import pytest
import timm
import torch
import transformers as hf
from small_models import Named, mlp
from timm.utils import ModelEmaV2, ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import maxsep
from maxsep.surgery import find_heads


class Lit(Named, lightning.LightningModule):
    def forward(self, x):
        return self.model(x)


def paths(model: nn.Module) -> list[str]:
    return [path for path, _ in find_heads(model)]


def test_the_network_in_a_lightning_module_is_searched_by_its_own_rules():
    lit = maxsep.attach(Lit(loss=nn.CrossEntropyLoss(), model=timm.create_model("resnet10t", num_classes=5)), 7)
    assert paths(lit) == ["model.fc"]
    assert lit.model.num_classes == 7
    assert lit(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert type(maxsep.fold(lit).model.fc) is nn.Linear
    assert paths(maxsep.attach(Lit(body=nn.Linear(4, 6), head=nn.Linear(6, 3)))) == ["head"]
    assert paths(maxsep.attach(Lit(net=AveragedModel(mlp())))) == ["net.module.2"]


def test_the_config_in_a_lightning_module_is_updated_and_checked():
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=9, num_labels=3, **config))
    assert maxsep.attach(Lit(model=model), 5).model.config.num_labels == 5
    regression = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=9, problem_type="regression", **config))
    with pytest.raises(ValueError, match="problem_type"):
        maxsep.attach(Lit(model=regression))


@pytest.mark.parametrize(
    "model", [Lit(model=nn.DataParallel(mlp())), Lit(model=mlp(), ema=mlp())], ids=["wrapped", "two networks"]
)
def test_a_lightning_module_without_one_network_is_refused(model):
    with pytest.raises(ValueError, match=r"wrapped|classifier="):
        maxsep.attach(model)


@pytest.mark.parametrize("use_buffers", [False, True])
def test_averages_of_a_model_with_a_head(use_buffers, tmp_path):
    torch.manual_seed(0)
    model = maxsep.attach(nn.Sequential(mlp(), nn.BatchNorm1d(3), nn.Linear(3, 4)), class_order=[3, 1, 0, 2])
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=use_buffers)
    x = torch.randn(8, 4)
    for _ in range(3):
        with torch.no_grad():
            model[2].weight.add_(1)
        average.update_parameters(model)
    torch.testing.assert_close(average.module[2].weight, model[2].weight - 0.75)  # after 1, 2, 3: 1, 1.5, 2.25
    assert average.module[2].class_order.tolist() == [3, 1, 0, 2]
    folded = maxsep.fold(average.eval())
    assert type(folded) is nn.Sequential
    torch.testing.assert_close(folded(x), average(x))
    maxsep.load(maxsep.save(average, tmp_path / "saved"), model)
    torch.testing.assert_close(model.eval()(x), average(x))


AVERAGES = {
    "all at once": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99), use_buffers=True),
    "one by one": lambda model: AveragedModel(model, avg_fn=get_ema_avg_fn(0.99), use_buffers=True),
    "timm 2": lambda model: ModelEmaV2(model, decay=0.99),
    "timm 3": lambda model: ModelEmaV3(model, decay=0.99),
}


@pytest.mark.parametrize("kind", AVERAGES)
def test_many_averages_keep_the_class_order(kind, tmp_path):
    torch.manual_seed(0)
    order = torch.randperm(100)
    model = nn.Sequential(maxsep.MaxSeparationHead(4, 100, class_order=order))
    average, x = AVERAGES[kind](model), torch.randn(3, 4)
    for _ in range(50):
        (average.update if "timm" in kind else average.update_parameters)(model)
    head = average.module[0]
    torch.testing.assert_close(head(x), model(x))
    torch.testing.assert_close(maxsep.fold(head)(x), model(x))
    assert torch.equal(head.class_order, order)
    maxsep.MaxSeparationHead(4, 100, class_order=order).load_state_dict(head.state_dict())
    torch.testing.assert_close(maxsep.grow(head, 2)(x)[:, :100], model(x))


@pytest.mark.parametrize("kind", [ModelEmaV2, ModelEmaV3])
def test_averages_of_timm(kind, tmp_path):
    average, other = kind(maxsep.attach(mlp())), maxsep.attach(mlp())
    x = torch.randn(2, 4)
    folded = maxsep.fold(average)
    assert type(folded) is nn.Sequential
    torch.testing.assert_close(folded(x), average(x))
    maxsep.load(maxsep.save(average, tmp_path / "saved"), other)
    torch.testing.assert_close(other(x), average(x))
    model = maxsep.attach(kind(Lit(net=timm.create_model("resnet10t", num_classes=5))), 7)
    assert paths(model) == ["module.net.fc"]
    assert model.module.net.num_classes == 7
    maxsep.grow(other, 2)
    maxsep.grow(average, 2)
    average.set(other)
    torch.testing.assert_close(average(x), other(x))


def test_attach_inside_an_average():
    model, average = mlp(), AveragedModel(mlp())
    maxsep.attach(model, 5)
    assert maxsep.attach(average, 5) is average
    average.update_parameters(model)
    x = torch.randn(2, 4)
    assert torch.equal(average(x), model(x))
