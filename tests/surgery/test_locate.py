import pytest
from torch import nn

import maxsep
from maxsep import MaxSeparationHead
from maxsep.surgery import find_heads, locate


class Named(nn.Module):
    """Children under the names given, in that order."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def paths(model: nn.Module) -> list[str]:
    return [path for path, _ in locate(model)]


def test_bare_layer_is_its_own_classifier():
    assert paths(nn.Linear(4, 3)) == [""]


def test_last_layer_of_a_sequential_and_what_follows_it_without_parameters():
    assert paths(mlp()) == ["2"]
    assert paths(nn.Sequential(*mlp(), nn.LogSoftmax(-1))) == ["2"]
    assert paths(nn.Sequential(nn.Flatten(), nn.Sequential(mlp(), nn.Dropout()))) == ["1.0.2"]


@pytest.mark.parametrize("name", ["fc", "classifier", "head", "heads", "last_linear", "linear"])
def test_names_by_convention(name):
    assert paths(Named(body=mlp(), **{name: nn.Linear(3, 2)})) == [name]
    assert paths(Named(body=mlp(), **{name: nn.Sequential(nn.LayerNorm(3), mlp())})) == [f"{name}.1.2"]


def test_only_linear_layer():
    assert paths(Named(conv=nn.Conv2d(3, 4, 3), prediction=nn.Linear(4, 2))) == ["prediction"]


def test_projection_of_attention_is_no_candidate():
    assert paths(Named(attention=nn.MultiheadAttention(4, 2), out=nn.Linear(4, 2))) == ["out"]


def test_auxiliary_heads_of_the_same_width():
    model = Named(
        body=mlp(), aux=nn.Linear(3, 2), aux_width=nn.Linear(3, 9), head_dist=nn.Linear(3, 2), head=nn.Linear(3, 2)
    )
    assert paths(model) == ["head", "aux", "head_dist"]


@pytest.mark.parametrize(
    "model",
    [
        Named(fc1=nn.Linear(4, 6), fc2=nn.Linear(6, 3)),
        Named(fc=nn.Linear(4, 6), out=nn.Linear(6, 3)),  # the conventional name is not the last layer
        Named(classifier=nn.Linear(4, 6), head=nn.Linear(4, 3)),
        Named(body=nn.Linear(4, 6), head=nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))),
    ],
    ids=["numbered", "not last", "two names", "followed by parameters"],
)
def test_several_candidates_are_listed_with_their_shapes(model):
    with pytest.raises(ValueError, match=r"no single classifier found in Named.*classifier='path\.to\.layer'") as error:
        locate(model)
    for path, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            assert f"{path!r}: {layer.in_features} -> {layer.out_features}" in str(error.value)


def test_long_lists_are_cut():
    model = Named(**{f"layer{index}": nn.Linear(2, 2) for index in range(30)})
    with pytest.raises(ValueError, match=r"10 more before these(.|\n)*'layer29': 2 -> 2"):
        locate(model)


def test_model_without_a_linear_layer():
    with pytest.raises(ValueError, match=r"It has no nn.Linear. Add one with one output per class"):
        locate(Named(conv=nn.Conv2d(3, 4, 3)))


def test_last_layer_is_a_convolution():
    with pytest.raises(ValueError, match="classifier at '1' is a convolution"):
        locate(nn.Sequential(nn.Linear(4, 4), nn.Conv2d(3, 4, 3)))


def test_path_by_hand_takes_that_layer_alone():
    model = Named(task_a=nn.Linear(4, 3), task_b=nn.Linear(4, 2), aux=nn.Linear(4, 3))
    assert [path for path, _ in locate(model, "task_a")] == ["task_a"]


def test_path_that_names_nothing():
    with pytest.raises(ValueError, match=r"classifier='fc' names no layer of Sequential(.|\n)*'2': 6 -> 3"):
        locate(mlp(), "fc")


def test_path_that_names_no_linear_layer():
    with pytest.raises(ValueError, match=r"classifier='0' names a Sequential, not an nn\.Linear(.|\n)*'0\.2': 6 -> 3"):
        locate(nn.Sequential(mlp()), "0")
    with pytest.raises(ValueError, match=r"names a Conv2d, not an nn\.Linear.*is a convolution"):
        locate(nn.Sequential(nn.Conv2d(3, 4, 3)), "0")


def test_path_of_another_type():
    with pytest.raises(TypeError, match=r"classifier must be the path of a layer such as 'head.fc', got Linear"):
        locate(mlp(), nn.Linear(2, 2))


def test_model_of_another_type():
    with pytest.raises(TypeError, match=r"model must be an nn.Module, got dict"):
        locate({})


@pytest.mark.parametrize("classifier", [None, "2"])
def test_model_that_has_a_head_already(classifier):
    model = maxsep.attach(mlp())
    with pytest.raises(ValueError, match=r"already has MaxSeparationHead.*at '2'.*maxsep\.grow.*maxsep\.fold"):
        locate(model, classifier)


def test_second_task_can_be_named_by_hand():
    model = Named(task_a=nn.Linear(4, 3), task_b=nn.Linear(4, 2))
    maxsep.attach(model, classifier="task_a")
    maxsep.attach(model, classifier="task_b")
    assert [path for path, _ in find_heads(model)] == ["task_a", "task_b"]


def test_main_head_is_listed_before_auxiliary_ones():
    model = Named(aux=MaxSeparationHead(4, 3), head=MaxSeparationHead(4, 3))
    assert [path for path, _ in find_heads(model)] == ["head", "aux"]
