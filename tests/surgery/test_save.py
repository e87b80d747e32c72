import json
import math

import pytest
import safetensors.torch
import torch
from torch import nn

import maxsep
from maxsep import MaxSeparation, MaxSeparationHead
from maxsep.heads import ETFHead, build, names

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))
FILES = ["MANIFEST.json", "maxsep.json", "model.safetensors"]


def mlp(num_classes: int = 3, radius: float = 0.5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), MaxSeparationHead(6, num_classes, radius)).eval()


def refused(folder, model: nn.Module, message: str) -> None:
    """Refused with a message of one line, and the model has not changed."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message) as error:
        maxsep.load(folder, model)
    assert "\n" not in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_description_comes_back(tmp_path):
    preprocessing = {"size": [32, 32], "mean": 0.5, "name": "größe"}
    options = {"labels": ["a", "b", "c"], "preprocessing": preprocessing, "threshold": -1, "extra": {"network": "mlp"}}
    assert maxsep.save(mlp(), tmp_path / "m", **options) == tmp_path / "m"
    assert "größe" in (tmp_path / "m" / "maxsep.json").read_text(encoding="utf-8")
    saved = maxsep.load(str(tmp_path / "m"), mlp())
    assert (saved.labels, saved.radius, saved.threshold) == (("a", "b", "c"), 0.5, -1.0)
    assert (saved.preprocessing, saved.extra) == (preprocessing, {"network": "mlp"})
    assert (saved.maxsep_version, saved.torch_version) == (maxsep.__version__, torch.__version__)


def test_defaults(tmp_path):
    saved = maxsep.load(maxsep.save(maxsep.fold(mlp()), tmp_path / "m"), maxsep.fold(mlp()))
    assert (saved.labels, saved.radius, saved.preprocessing, saved.threshold, saved.extra) == (None,) * 5


def test_a_save_that_drops_what_an_earlier_one_had_warns(tmp_path):
    maxsep.save(mlp(), tmp_path / "m", labels=list("abc"), threshold=0.5)
    with pytest.warns(UserWarning, match="without its threshold"):
        maxsep.save(mlp(), tmp_path / "m", labels=list("abc"))
    with pytest.warns(UserWarning, match="without its labels"):
        maxsep.save(mlp(), tmp_path / "m")
    maxsep.save(mlp(), tmp_path / "m")  # nothing is lost: pytest would turn a warning into an error


def test_files_are_safetensors_and_json_that_the_same_people_may_read(tmp_path):
    model, other = mlp(), mlp()
    folder = maxsep.save(model, tmp_path / "m")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    other.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
    assert torch.equal(other(X), model(X))
    assert json.loads((folder / "maxsep.json").read_text())["heads"]["2"]["radius"] == 0.5


@pytest.mark.parametrize("name", names())
def test_every_head_and_its_folded_form(name, tmp_path):
    torch.manual_seed(0)
    options = {"iterations": 10} if name == "hpn" else {}
    model, other = (nn.Sequential(nn.Linear(4, 9), build(name, 9, 5, **options)) for _ in range(2))
    folded, other_folded = maxsep.fold(model), maxsep.fold(other)
    maxsep.load(maxsep.save(model, tmp_path / "m"), other)
    assert torch.equal(other(X), model(X))
    maxsep.load(maxsep.save(folded, tmp_path / "m"), other_folded)
    assert torch.equal(other_folded(X), folded(X))


def test_tied_weights_and_heads_at_two_places_are_stored_once(tmp_path):
    def tied() -> nn.ModuleDict:
        body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        body[1].weight = body[0].weight
        head = MaxSeparationHead(4, 3)
        model = nn.ModuleDict({"body": body, "a": head, "b": head})
        model.register_buffer("memory", torch.randn(6))
        model.register_buffer("part", model.memory[2:])
        model.register_buffer("even", model.memory[::2])
        model.register_buffer("last", model.memory[3:])  # of the same shape as `even`
        return model

    model, other = tied(), tied()
    folder = maxsep.save(model, tmp_path / "m")
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    assert len([name for name in stored if name.endswith("weight")]) == 2
    maxsep.load(folder, other)
    assert torch.equal(other["b"](other["body"](X)), model["b"](model["body"](X)))
    assert all(torch.equal(other.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert other.part.data_ptr() == other.memory[2:].data_ptr()


def test_models_that_do_not_fit_are_refused_before_anything_is_copied(tmp_path):
    folder = maxsep.save(mlp(), tmp_path / "m")
    refused(folder, mlp(radius=1.0), r"'2'.*radius 0\.5, got 1\.0")
    refused(folder, mlp(4), "'2'.*num_classes 3, got 4")
    body = nn.Linear(4, 6), nn.BatchNorm1d(6)
    refused(folder, nn.Sequential(*body, build("scaled", 6, 3, 0.5)), "MaxSeparationHead at '2'.*ScaledHead at '2'")
    refused(folder, maxsep.fold(mlp()), "MaxSeparationHead at '2'.*no head")
    refused(folder, nn.Sequential(*mlp(), nn.Linear(3, 3)), r"'3\.weight'.*missing")
    refused(folder, nn.Sequential(body[0], nn.Identity(), mlp()[2]), r"'1\..*not in this")
    refused(folder, nn.Sequential(nn.Linear(5, 6), *mlp()[1:]), r"'0\.weight'.*\(6, 4\), got \(6, 5\)")
    refused(maxsep.save(maxsep.fold(mlp()), tmp_path / "folded"), mlp(), "no head.*MaxSeparationHead at '2'")
    refused(folder, nn.Sequential(mlp()), "MaxSeparationHead at '2'.*MaxSeparationHead at '0.2'")


def test_options_that_are_not_in_the_tensors(tmp_path):
    folder = maxsep.save(nn.Sequential(nn.Linear(4, 2), MaxSeparation(3, 0.5)), tmp_path / "m")
    refused(folder, nn.Sequential(nn.Linear(4, 2), MaxSeparation(3)), "'1'.*radius")
    folder = maxsep.save(nn.Sequential(nn.Linear(4, 4), ETFHead(4, 3)), tmp_path / "m")
    refused(folder, nn.Sequential(nn.Linear(4, 4), ETFHead(4, 3, normalise=True)), "'1'.*normalise False, got True")
    refused(folder, nn.Sequential(nn.Linear(4, 4), ETFHead(4, 3, reserved=1)), "'1'.*reserved")


def test_class_order(tmp_path):
    def ordered(*order: int) -> nn.Module:
        head = MaxSeparationHead(4, 3, class_order=order or None)
        return nn.ModuleDict({"body": nn.Linear(4, 6), "a": head, "b": head})

    model, other = ordered(2, 0, 1), ordered(2, 0, 1)
    folder = maxsep.save(model, tmp_path / "m")
    maxsep.load(folder, other)
    assert torch.equal(other["b"](X), model["b"](X))
    for other in (ordered(0, 2, 1), ordered()):
        refused(folder, other, r"'[ab]\.class_order'.*class_order=\[2, 0, 1\]")


@pytest.mark.parametrize("name", FILES)
def test_damaged_bytes_are_refused(tmp_path, name):
    path = maxsep.save(mlp(), tmp_path / "m") / name
    content = path.read_bytes()
    for damaged in (content[:-2] + bytes([content[-2] ^ 1]) + content[-1:], content[:-1], content + b"\n"):
        path.write_bytes(damaged)
        refused(path.parent, mlp(), "damaged")


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"labels": ["a", "b"]}, ValueError, "labels"),
        ({"labels": "abc"}, TypeError, "labels"),
        ({"threshold": math.nan}, ValueError, "threshold"),
        ({"preprocessing": {"mean": torch.zeros(3)}}, TypeError, "preprocessing"),
        ({"extra": {1, 2}}, TypeError, "extra"),
        ({"extra": {"mean": math.nan}}, TypeError, "extra"),  # Python's json would write it, and no other reads it
    ],
)
def test_bad_descriptions_write_nothing(tmp_path, options, error, name):
    with pytest.raises(error, match=name):
        maxsep.save(mlp(), tmp_path / "m", **options)
    assert not list(tmp_path.iterdir())


class Odd(nn.Module):
    def get_extra_state(self):
        return {"anything": 1}

    def set_extra_state(self, state):
        pass


def test_models_that_cannot_be_saved_or_loaded(tmp_path):
    folder = maxsep.save(mlp(), tmp_path / "m")
    with pytest.raises(ValueError, match=r"'0\.weight'.*meta"):
        maxsep.save(mlp().to("meta"), folder)
    with pytest.raises(ValueError, match=r"'0\.weight'.*meta"):
        maxsep.load(folder, mlp().to("meta"))
    with pytest.raises(TypeError, match="_extra_state"):
        maxsep.save(Odd(), folder)
    with pytest.raises(TypeError, match="model"):
        maxsep.save("x", nn.Linear(2, 2))
    with pytest.raises(TypeError, match="model"):
        maxsep.load(nn.Linear(2, 2), folder)
    maxsep.load(folder, mlp())


def test_a_model_that_ties_what_was_saved_apart_is_refused(tmp_path):
    def model():
        return nn.ModuleDict({"first": nn.Linear(4, 4, bias=False), "second": nn.Linear(4, 4, bias=False)})

    maxsep.save(model(), tmp_path / "saved")
    tied = model()
    tied["second"].weight = tied["first"].weight
    refused(tmp_path / "saved", tied, "second")
