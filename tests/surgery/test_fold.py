import pickle
import subprocess
import sys

import pytest
import torch
from small_models import relative_error
from torch import nn

import maxsep
from maxsep import MaxSeparation, MaxSeparationHead
from maxsep.heads import ETFHead, ScaledHead, build
from maxsep.surgery.pretrained import fold_on_save


def test_fixed_parts_are_frozen_and_trained_ones_are_not():
    cosine = maxsep.fold(build("hpn", 12, 5, iterations=10))
    assert [p.requires_grad for p in cosine.parameters()] == [True, True, False]
    assert [p.requires_grad for p in maxsep.fold(ETFHead(12, 5, bias=True)).parameters()] == [False, True]
    head = MaxSeparationHead(12, 5)
    head.bias.requires_grad_(False)
    assert [p.requires_grad for p in maxsep.fold(head).parameters()] == [True, False]
    trained = build("learnable_matrix", 12, 5)
    trained.weight.requires_grad_(False)
    assert maxsep.fold(trained).weight.requires_grad


def test_layer_before_the_matrix_is_merged_with_it_and_the_numbering_stays():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), MaxSeparation(5, 0.3), nn.LogSoftmax(-1))
    model[2].weight.requires_grad_(False)
    folded, x = maxsep.fold(model.eval()), torch.randn(10, 4)
    torch.testing.assert_close(folded(x), model(x))
    assert [type(part) for part in folded] == [nn.Linear, nn.ReLU, nn.Linear, nn.Identity, nn.LogSoftmax]
    assert (folded[2].weight.requires_grad, folded[2].bias.requires_grad) == (False, True)
    assert not folded[2].training


def test_matrix_alone_is_written_out_and_frozen():
    model = nn.Sequential(nn.Linear(6, 4, bias=False), nn.Dropout(0.0), MaxSeparation(5, 0.3)).double()
    folded, x = maxsep.fold(model), torch.randn(10, 6).double()
    torch.testing.assert_close(folded(x), model(x))
    assert folded[2].weight.shape == (5, 4)
    assert folded[2].bias is None
    assert not folded[2].weight.requires_grad
    assert type(maxsep.fold(MaxSeparation(5))) is nn.Linear


@pytest.mark.parametrize("reason", ["shared", "forward", "forward_pre", "kind"])
def test_layer_that_others_use_or_watch_is_not_merged(reason):
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, MaxSeparation(5), nn.Linear(5, 4), layer, MaxSeparation(5))
    if reason != "shared":
        model = model[:2]
    if reason.startswith("forward"):
        getattr(layer, f"register_{reason}_hook")(lambda *_: None)
    if reason == "kind":
        model[0] = type("Other", (nn.Linear,), {"forward": lambda self, x: 2 * nn.Linear.forward(self, x)})(4, 4)
    folded, x = maxsep.fold(model), torch.randn(10, 4)
    torch.testing.assert_close(folded(x), model(x))
    assert folded[0].out_features == 4


def test_what_saves_a_transformers_model_folded_is_not_in_the_folded_one():
    kind = type("PreTrained", (nn.Sequential,), {"base_model_prefix": "model", "save_pretrained": None})
    model = kind(MaxSeparationHead(4, 3))
    fold_on_save(model)
    folded = maxsep.fold(model)
    for each, expected in ((model, True), (folded, False)):
        assert ("save_pretrained" in vars(each), bool(each._load_state_dict_pre_hooks)) == (expected, expected)


def test_head_at_two_places_stays_one():
    head = MaxSeparationHead(4, 3)
    folded = maxsep.fold(nn.ModuleList([head, head]))
    assert folded[0] is folded[1]


def test_dtype_and_mode_are_kept():
    model = nn.Sequential(nn.Linear(4, 12), ETFHead(12, 5)).to(torch.bfloat16).eval()
    folded = maxsep.fold(model)
    assert folded[1].weight.dtype == torch.bfloat16
    assert not folded[1].training
    assert maxsep.fold(MaxSeparationHead(4, 3, device="meta")).weight.is_meta


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile, nn.parallel.DistributedDataParallel])
def test_wrappers_are_removed(wrap, tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = wrap(nn.Sequential(MaxSeparationHead(4, 3)))
        assert [type(part) for part in maxsep.fold(model).modules()] == [nn.Sequential, nn.Linear]
        with pytest.raises(ValueError, match="wrapped"):
            maxsep.grow(model, 1)
    finally:
        torch.distributed.destroy_process_group()


def test_sequential_with_a_forward_of_its_own_is_not_merged():
    class Doubled(nn.Sequential):
        def forward(self, x):
            return self[1](2 * self[0](x) ** 2)

    model, x = Doubled(nn.Linear(4, 4), MaxSeparation(5)), torch.randn(10, 4)
    torch.testing.assert_close(maxsep.fold(model)(x), model(x))


def test_folded_model_needs_no_maxsep(tmp_path):
    model = nn.Sequential(nn.Linear(4, 6), MaxSeparationHead(6, 3), nn.Linear(3, 2), MaxSeparation(3))
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(maxsep.fold(model)))
    code = (
        "import sys, pickle; sys.modules['maxsep'] = None; model = pickle.load(open('model.pickle', 'rb'));"
        "import torch; print(tuple(model(torch.ones(2, 4)).shape))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(2, 3)"


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (nn.Linear(4, 3), ValueError, "Linear"),
        ("model", TypeError, "model_or_head"),
        (MaxSeparation(20_000), ValueError, "20000"),
    ],
)
def test_refused(model, error, message):
    with pytest.raises(error, match=message):
        maxsep.fold(model)


@pytest.mark.parametrize("between", [[], [nn.Dropout(0.0)]], ids=["merged", "alone"])
def test_rows_are_in_the_order_of_the_classes(between):
    order = [3, 0, 4, 1, 2]
    matrix, x = MaxSeparation(5, 0.3, class_order=order), torch.randn(10, 4)
    model = nn.Sequential(nn.Linear(4, 4), *between, matrix)
    plain = nn.Sequential(*model[:-1], MaxSeparation(5, 0.3))
    torch.testing.assert_close(maxsep.fold(model)(x)[:, order], plain(x))


def test_autocast_and_inference_mode_around_the_call_change_nothing():
    head = build("learnable_matrix", 64, 100)
    x = torch.randn(3, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        folded = maxsep.fold(head)
    assert relative_error(folded(x), head(x)) <= 1e-5
    folded(x).sum().backward()
    assert folded.weight.grad is not None


@pytest.mark.parametrize("normalise", [False, True])
def test_a_head_without_parameters_folds_in_its_own_precision(normalise):
    head, x = ETFHead(12, 5, 0.3, normalise=normalise).double(), torch.randn(10, 12, dtype=torch.float64)
    assert relative_error(maxsep.fold(head)(x), head(x)) <= 1e-14
    assert relative_error(maxsep.fold(ETFHead(12, 5, 0.3, dtype=torch.float64))(x), ETFHead(12, 5, 0.3)(x)) <= 1e-14
    model = nn.Sequential(nn.Linear(12, 12).double(), ETFHead(12, 5, 0.3, normalise=normalise))
    assert relative_error(maxsep.fold(model)(x), model(x)) <= 1e-14
    assert next(maxsep.fold(ETFHead(12, 5)).parameters()).dtype == torch.float32
    assert head.class_vectors().dtype == torch.float64


class Sharpened(MaxSeparationHead):
    def forward(self, x):
        return 2 * super().forward(x)


class SharpenedFolded(Sharpened):
    def linear_form(self):
        weight, bias = super().linear_form()
        return 2 * weight, 2 * bias


class Clipped(ETFHead):
    def features(self, x):
        return super().features(x).clamp(-1, 1)


class Flipped(MaxSeparation):
    def forward(self, x):
        return -super().forward(x)


def test_subclasses_that_change_the_logits_are_refused():
    shifted = type("Shifted", (ScaledHead,), {"layer": lambda self, x: x[..., :3] + 1})(4, 3)
    parts = {"forward": Sharpened(4, 3), "features": Clipped(4, 3), "layer": shifted, "Flipped": Flipped(5)}
    for message, part in parts.items():
        with pytest.raises(ValueError, match=message):
            maxsep.fold(nn.Sequential(nn.Linear(4, 4), part))
    head, x = SharpenedFolded(4, 3), torch.randn(5, 4)
    assert relative_error(maxsep.fold(head)(x), head(x)) <= 1e-5
