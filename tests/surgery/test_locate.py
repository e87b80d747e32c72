import pytest
import torch
from small_models import Named, mlp, refused
from torch import nn
from torch.nn.utils import parametrizations

import maxsep
from maxsep import MaxSeparationHead
from maxsep.surgery import find_heads


def paths(model: nn.Module, classifier: str | None = None) -> list[str]:
    return [path for path, _ in find_heads(maxsep.attach(model, classifier=classifier))]


def test_last_layer_of_a_sequential_before_layers_without_parameters():
    assert paths(nn.Linear(4, 3)) == [""]
    assert paths(mlp()) == ["2"]
    assert paths(nn.Sequential(nn.Sigmoid(), *mlp(), nn.LogSoftmax(-1))) == ["3"]
    assert paths(nn.Sequential(nn.Flatten(), nn.Sequential(mlp(), nn.Dropout()))) == ["1.0.2"]


@pytest.mark.parametrize("name", ["fc", "classifier", "head", "heads", "last_linear", "linear"])
def test_usual_names(name):
    assert paths(Named(body=mlp(), **{name: nn.Linear(3, 2)})) == [name]
    assert paths(Named(body=mlp(), **{name: nn.Sequential(nn.LayerNorm(3), mlp())})) == [f"{name}.1.2"]


def test_only_linear_layer():
    assert paths(Named(conv=nn.Conv2d(3, 4, 3), prediction=nn.Linear(4, 2))) == ["prediction"]
    assert paths(Named(attention=nn.MultiheadAttention(4, 2), out=nn.Linear(4, 2))) == ["out"]


def test_auxiliary_heads_of_the_same_width_come_last():
    aux = {"aux": nn.Linear(3, 2), "aux_width": nn.Linear(3, 9), "head_dist": nn.Linear(3, 2)}
    assert paths(Named(body=mlp(), **aux, head=nn.Linear(3, 2))) == ["head", "aux", "head_dist"]


@pytest.mark.parametrize(
    "model",
    [
        Named(fc1=nn.Linear(4, 6), fc2=nn.Linear(6, 3)),
        Named(fc=nn.Linear(4, 6), out=nn.Linear(6, 3)),  # the usual name is not the last layer
        Named(classifier=nn.Linear(4, 6), head=nn.Linear(4, 3)),
        Named(body=nn.Linear(4, 6), head=nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))),
    ],
    ids=["numbered", "not last", "two names", "followed by parameters"],
)
def test_ambiguous_models_are_refused_and_their_layers_listed(model):
    first, last = (path for path, layer in model.named_modules() if isinstance(layer, nn.Linear))
    refused(model, rf"Named.*{first}.*4 -> 6.*{last}.*-> 3")


def test_path():
    model = Named(task_a=nn.Linear(4, 3), task_b=nn.Linear(4, 2), aux=nn.Linear(4, 3))
    assert paths(model, "task_a") == ["task_a"]
    assert paths(model, "task_b") == ["task_a", "task_b"]


@pytest.mark.parametrize(
    ("path", "message"),
    [("fc", "classifier='fc'.*0.2"), ("0", r"Sequential.*0\.2"), ("1", "Conv2d"), ("2", r"MaxSeparationHead.*grow")],
)
def test_paths_of_other_things_are_refused(path, message):
    refused(nn.Sequential(mlp(), nn.Conv2d(3, 4, 3), MaxSeparationHead(4, 3)), message, path)


def conv(**options) -> nn.Conv2d:
    return nn.Conv2d(3, 4, **{"kernel_size": 1} | options)


def test_convolutions():
    assert paths(nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(), nn.Flatten())) == ["1.layer"]
    assert paths(Named(classifier=conv(), pool=nn.AvgPool2d(2))) == ["classifier.layer"]
    assert paths(nn.Sequential(nn.Linear(3, 3), conv()), "1") == ["1.layer"]  # each pixel is classified
    assert maxsep.attach(conv(), classifier="")(torch.zeros(2, 3, 5, 6)).shape == (2, 4, 5, 6)
    for options in ({"kernel_size": 3}, {"stride": 2}, {"padding": 1}, {"groups": 1, "kernel_size": (1, 2)}):
        refused(nn.Sequential(nn.AdaptiveAvgPool2d(1), conv(**options)), "Conv2d")


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    model[1].weight = model[0].weight
    return model


def packed() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.weight = nn.Parameter(torch.zeros(6, 1, dtype=torch.uint8), requires_grad=False)
    return layer


SIGMOID = {
    "sequential": nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()),
    "outside": nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 3)), nn.Sigmoid()),
    "behind": nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.Sigmoid()),
    "attribute": Named(gate=nn.Sigmoid(), fc=nn.Linear(4, 3), act=nn.Sigmoid()),
}
REFUSED = {
    "unusual name": (Named(cls=nn.Conv2d(3, 4, 1), pool=nn.AdaptiveAvgPool2d(1)), r"classifier=.*'cls' \(3 -> 4\)"),
    "no linear layer": (Named(conv=nn.Conv2d(3, 4, 3)), "none"),
    "convolution": (nn.Sequential(nn.Linear(4, 4), nn.Conv2d(3, 4, 3)), "Conv2d"),
    "unpooled convolution": (nn.Sequential(nn.Linear(4, 4), nn.Conv2d(3, 4, 1)), "classifier='1'"),
    "head": (maxsep.attach(mlp()), "MaxSeparationHead.*at '2'"),
    "one output": (nn.Linear(4, 1), "got 1"),
    "tied": (tied(), r"'1'.*'0\.weight'"),
    "used twice": (nn.Sequential(*[nn.Linear(4, 4)] * 2), r"'0\.weight'", "1"),
    "lazy": (nn.Sequential(nn.LazyLinear(3)), "lazy"),
    "computed": (nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 3))), "computes its weight"),
    "packed": (packed(), "uint8"),
    "parallel": (nn.DataParallel(mlp()), "DataParallel"),
    "compiled": (torch.compile(mlp()), "OptimizedModule"),
    **{f"sigmoid, {name}": (model, "Sigmoid") for name, model in SIGMOID.items()},
}


@pytest.mark.parametrize("case", REFUSED)
def test_layers_that_must_not_be_replaced(case):
    refused(*REFUSED[case])
