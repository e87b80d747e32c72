import builtins
import copy
import json
import math

import pytest
import safetensors.torch
import torch
from torch import nn

import maxsep
from maxsep import MaxSeparation, MaxSeparationHead
from maxsep.heads import build, names
from maxsep.surgery.whole_folder import write_folder


def mlp(num_classes: int = 3, radius: float = 0.5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), MaxSeparationHead(6, num_classes, radius)).eval()


X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))


def test_everything_that_was_given_comes_back(tmp_path):
    model = mlp()
    how = {"size": [32, 32], "mean": 0.5, "name": "größe"}
    given = {"labels": ["a", "b", "c"], "preprocessing": how, "threshold": -1, "extra": {"network": "mlp"}}
    assert maxsep.save(model, tmp_path / "m", **given) == tmp_path / "m"
    saved = maxsep.load(str(tmp_path / "m"), mlp())
    assert (saved.labels, saved.radius, saved.preprocessing, saved.threshold) == (("a", "b", "c"), 0.5, how, -1.0)
    assert saved.extra == {"network": "mlp"}
    assert saved.maxsep_version == maxsep.__version__
    assert saved.torch_version == torch.__version__
    (head,) = saved.heads
    assert (head.path, head.kind, head.num_classes, head.in_features) == ("2", "maxsep", 3, 6)


def test_defaults(tmp_path):
    saved = maxsep.load(maxsep.save(maxsep.fold(mlp()), tmp_path / "m"), maxsep.fold(mlp()))
    assert (saved.labels, saved.radius, saved.preprocessing, saved.threshold, saved.heads) == (None,) * 4 + ((),)
    assert saved.extra is None


def test_a_folder_of_an_earlier_version_has_nothing_extra(tmp_path):
    def write(place):
        safetensors.torch.save_file({"weight": torch.ones(2, 3), "bias": torch.zeros(2)}, place / "model.safetensors")
        told = dict.fromkeys(("labels", "radius", "preprocessing", "threshold")) | {"heads": [], "aliases": {}}
        (place / "maxsep.json").write_text(json.dumps(told | {"maxsep_version": "0", "torch_version": "2"}))

    write_folder(tmp_path / "m", write)
    assert maxsep.load(tmp_path / "m", nn.Linear(3, 2)).extra is None


def test_files_are_plain_safetensors_and_json(tmp_path):
    model = mlp()
    maxsep.save(model, tmp_path / "m")
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "MANIFEST.json",
        "maxsep.json",
        "model.safetensors",
    ]
    other = mlp()
    other.load_state_dict(safetensors.torch.load_file(tmp_path / "m" / "model.safetensors"))
    assert torch.equal(other(X), model(X))
    assert json.loads((tmp_path / "m" / "maxsep.json").read_text())["heads"][0]["radius"] == 0.5


@pytest.mark.parametrize("name", names())
def test_every_head_into_its_like_and_into_its_folded_form(name, tmp_path):
    torch.manual_seed(0)
    options = {"iterations": 10} if name == "hpn" else {}
    model, other = (nn.Sequential(nn.Linear(4, 9), build(name, 9, 5, **options)) for _ in range(2))
    maxsep.save(model, tmp_path / "m")
    maxsep.load(tmp_path / "m", other)
    assert torch.equal(other(X), model(X))
    plain = maxsep.fold(other)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(2)
    maxsep.load(tmp_path / "m", plain)
    torch.testing.assert_close(plain(X), model(X), rtol=1e-5, atol=1e-5)


def test_options_of_a_head_survive_folding(tmp_path):
    model = nn.Sequential(build("etf", 4, 3, 2.0, normalise=True, reserved=1, bias=True))
    maxsep.save(model, tmp_path / "m")
    plain = maxsep.fold(nn.Sequential(build("etf", 4, 3, 9.0, normalise=True, reserved=1, bias=True)))
    maxsep.load(tmp_path / "m", plain)
    torch.testing.assert_close(plain(X), model(X))


def test_folded_into_attached_keeps_every_probability(tmp_path):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    maxsep.save(plain, tmp_path / "m")
    model = mlp()
    maxsep.load(tmp_path / "m", model)
    torch.testing.assert_close(model(X).softmax(-1), plain(X).softmax(-1))
    control = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), build("plain", 6, 3)).eval()
    maxsep.load(tmp_path / "m", control)
    assert torch.equal(control(X), plain(X))


def test_bare_heads(tmp_path):
    head, layer, x = MaxSeparationHead(4, 3), nn.Linear(4, 3), X
    maxsep.load(maxsep.save(head, tmp_path / "m"), layer)
    torch.testing.assert_close(layer(x), head(x))
    again = MaxSeparationHead(4, 3)
    maxsep.load(maxsep.save(layer, tmp_path / "m"), again)
    torch.testing.assert_close(again(x), head(x))


def test_wrappers_are_taken_off_on_both_sides(tmp_path):
    model = mlp()
    maxsep.save(nn.DataParallel(model), tmp_path / "m")
    other = mlp()
    maxsep.load(tmp_path / "m", torch.compile(other))
    assert torch.equal(other(X), model(X))


def test_other_precision(tmp_path):
    model = mlp()
    half = copy.deepcopy(model).to(torch.bfloat16)
    maxsep.save(model, tmp_path / "m")
    maxsep.load(tmp_path / "m", half)
    assert torch.equal(half[2].weight, model[2].weight.to(torch.bfloat16))


def test_tied_weights_are_stored_once_and_overlapping_ones_apart(tmp_path):
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), MaxSeparationHead(4, 3))
        model[1].weight = model[0].weight
        memory = torch.randn(6)
        model.register_buffer("front", memory[:4])
        model.register_buffer("back", memory[2:])
        return model

    model, other = tied(), tied()
    maxsep.save(model, tmp_path / "m")
    assert "1.weight" not in safetensors.torch.load_file(tmp_path / "m" / "model.safetensors")
    maxsep.load(tmp_path / "m", other)
    assert torch.equal(other(X), model(X))
    assert torch.equal(other.front, model.front)
    assert torch.equal(other.back, model.back)


def refused(folder, model: nn.Module, message: str) -> None:
    """Refused with this message, and nothing of the model has changed."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        maxsep.load(folder, model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_models_that_do_not_fit_are_refused_before_anything_is_copied(tmp_path):
    folder = maxsep.save(mlp(), tmp_path / "m")
    refused(folder, mlp(radius=1.0), r"head at '2' was saved with radius 0\.5, but the model's has radius 1\.0")
    refused(folder, mlp(4), "head at '2' was saved with num_classes 3, but the model's has num_classes 4")
    other = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), build("scaled", 6, 3, 0.5))
    refused(folder, other, "was saved with kind maxsep, but the model's has kind scaled")
    refused(folder, nn.Sequential(*mlp(), nn.Linear(3, 3)), r"'3\.weight' is missing in the saved model")
    refused(folder, nn.Sequential(nn.Linear(4, 6)), r"'1\.bias' is not in this model.*and 3 more")
    wider = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    refused(folder, wider, r"'0\.weight' has shape \(6, 4\), the model's \(7, 4\)")


def test_radius_of_a_bare_matrix(tmp_path):
    folder = maxsep.save(nn.Sequential(nn.Linear(4, 2), MaxSeparation(3, 0.5)), tmp_path / "m")
    refused(
        folder, nn.Sequential(nn.Linear(4, 2), MaxSeparation(3)), "saved with radius 0.5, but the model's has radius 1"
    )


def test_ordinary_layers_that_determine_no_head(tmp_path):
    plain = nn.Sequential(nn.Linear(4, 3, bias=False))
    folder = maxsep.save(plain, tmp_path / "m")
    refused(
        folder, nn.Sequential(build("scaled", 4, 3, bias=False)), r"has no head at '0', only .*does not determine a Sc"
    )
    refused(folder, nn.Sequential(MaxSeparationHead(4, 3)), r"\(3, 4\).*keep_weights=True")
    refused(folder, nn.Sequential(MaxSeparationHead(4, 4, bias=False)), "does not determine a MaxSeparationHead")


def test_head_of_a_class_that_is_not_registered(tmp_path):
    class Own(MaxSeparationHead):
        pass

    folder = maxsep.save(nn.Sequential(Own(4, 3)), tmp_path / "m")
    maxsep.load(folder, nn.Sequential(Own(4, 3)))
    refused(folder, nn.Sequential(nn.Linear(4, 3)), "head at '0' is a .*Own, which is not registered here")


@pytest.mark.parametrize("name", ["model.safetensors", "maxsep.json"])
def test_damaged_files_are_refused(tmp_path, name):
    folder = maxsep.save(mlp(), tmp_path / "m")
    content = bytearray((folder / name).read_bytes())
    content[len(content) * 2 // 3] ^= 1
    (folder / name).write_bytes(content)
    refused(folder, mlp(), rf"{name} is damaged: .* SHA-256 [0-9a-f]{{64}}, and now has .* SHA-256 [0-9a-f]{{64}}")
    (folder / name).write_bytes(content[:-10])
    refused(folder, mlp(), f"{name} is damaged")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"labels": ["a", "b"]}, ValueError, "got 2 labels for 3 classes"),
        ({"labels": "abc"}, TypeError, "labels must be a list of strings, one per class, got 'abc'"),
        ({"labels": [1, 2, 3]}, TypeError, "labels must be a list of strings"),
        ({"threshold": math.nan}, ValueError, "threshold must be finite, got nan"),
        ({"threshold": "high"}, TypeError, "threshold must be a number, got str"),
        ({"threshold": True}, TypeError, "threshold must be a number, got bool"),
        (
            {"preprocessing": {"mean": torch.zeros(3)}},
            TypeError,
            "preprocessing and extra must be made of what JSON can hold",
        ),
        ({"preprocessing": math.inf}, TypeError, "preprocessing and extra must be made of what JSON can hold"),
        ({"extra": {1, 2}}, TypeError, "preprocessing and extra must be made of what JSON can hold"),
    ],
)
def test_bad_descriptions_write_nothing(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        maxsep.save(mlp(), tmp_path / "m", **options)
    assert not list(tmp_path.iterdir())


def test_models_without_values(tmp_path):
    with pytest.raises(ValueError, match=r"'0\.weight' is on the meta device and has no values"):
        maxsep.save(mlp().to("meta"), tmp_path / "m")
    folder = maxsep.save(mlp(), tmp_path / "m")
    with pytest.raises(ValueError, match=r"model is on the meta device and has no memory.*to_empty"):
        maxsep.load(folder, mlp().to("meta"))


def test_state_that_is_no_tensor(tmp_path):
    class Odd(nn.Module):
        def get_extra_state(self):
            return {"anything": 1}

        def set_extra_state(self, state):
            pass

    with pytest.raises(TypeError, match="state-dict entry '_extra_state' is a dict; a saved folder holds tensors only"):
        maxsep.save(Odd(), tmp_path / "m")


def test_missing_safetensors_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("safetensors"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "maxsep\[save\]"'):
        maxsep.save(mlp(), tmp_path / "m")
    with pytest.raises(ImportError, match=r'pip install "maxsep\[save\]"'):
        maxsep.load(tmp_path / "m", mlp())


def test_a_layer_with_the_matrix_loads_into_its_folded_form(tmp_path):
    model = nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 2), maxsep.MaxSeparation(3, radius=0.5)))
    folded = maxsep.fold(nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 2), maxsep.MaxSeparation(3, 0.5))))
    told = maxsep.load(maxsep.save(model, tmp_path / "m", labels=["a", "b", "c"]), folded)
    assert told.radius == 0.5
    x = torch.randn(5, 4)
    torch.testing.assert_close(folded(x), model(x))
    with pytest.raises(ValueError, match=r"saved with radius 0\.5, but the model's has radius 1"):
        maxsep.load(
            tmp_path / "m", nn.Sequential(nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 2), maxsep.MaxSeparation(3)))
        )


def test_a_head_at_two_places_loads_into_its_folded_form(tmp_path):
    head = maxsep.MaxSeparationHead(8, 5)
    model = nn.ModuleDict({"a": head, "b": head})
    folded = maxsep.fold(model)
    with torch.no_grad():
        folded["a"].weight.zero_()
    maxsep.load(maxsep.save(model, tmp_path / "m"), folded)
    x = torch.randn(2, 8)
    torch.testing.assert_close(folded["b"](x), head(x))


def test_arguments_in_the_wrong_order(tmp_path):
    with pytest.raises(TypeError, match=r"the call is save\(model, folder\), with an nn.Module as model, got str"):
        maxsep.save("x", nn.Linear(2, 2))
    with pytest.raises(
        TypeError, match=r"the call is load\(folder, model\), with an nn.Module as model, got PosixPath"
    ):
        maxsep.load(nn.Linear(2, 2), tmp_path)


class Sharpened(MaxSeparationHead):
    def forward(self, x):
        return 2 * super().forward(x)


class Extended(MaxSeparationHead):
    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.gain = nn.Parameter(torch.rand(2))


def test_whoever_may_read_the_description_may_read_the_weights(tmp_path):
    folder = maxsep.save(nn.Linear(2, 2), tmp_path / "model")
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert len(modes) == 1
