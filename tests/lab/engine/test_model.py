import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep import heads
from maxsep.lab.engine.model import Pipeline, build_model, derive
from maxsep.lab.networks import MLP
from maxsep.lab.spec import RunSpec, options


@pytest.mark.parametrize("network", ["mlp", "resnet32"])
def test_heads_of_one_seed_share_the_backbone(network):
    shape = (3, 16, 16)
    reference = build_model(RunSpec(network=network, head="plain"), shape, 10).state_dict()
    for head, radius in (("scaled", 0.1), ("maxsep", 0.1), ("learnable_matrix", 1.0)):
        other = build_model(RunSpec(network=network, head=head, radius=radius), shape, 10).state_dict()
        shared = [name for name in reference if not name.startswith("head.")]
        assert shared
        assert all(torch.equal(reference[name], other[name]) for name in shared)


@pytest.mark.parametrize("head", heads.names())
def test_no_head_on_vgg32_has_a_bias(head):
    network = build_model(RunSpec(network="vgg32", head=head), (3, 8, 8), 6)
    assert not [name for name, _ in network.named_parameters() if name.startswith("head.") and "bias" in name]


@pytest.mark.parametrize(
    ("head", "classes", "features", "size"),
    [
        ("plain", 6, 128, 999_872),
        ("scaled", 6, 128, 999_872),
        ("maxsep", 6, 128, 999_744),
        ("plain", 4, 128, 999_616),
        ("maxsep", 4, 128, 999_488),
        ("maxsep", 6, 2, 853_710),
        ("maxsep", 4, 2, 853_706),
    ],
)
def test_vgg32_with_its_head_has_the_protocols_size(head, classes, features, size):
    spec = RunSpec(network="vgg32", head=head, network_options=options(feature_size=features))
    network = build_model(spec, (3, 32, 32), classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == size


def test_a_spec_may_ask_for_the_bias():
    spec = RunSpec(network="vgg32", head="plain", head_options=options(bias=True))
    assert build_model(spec, (3, 8, 8), 6).head.bias.shape == (6,)


@pytest.mark.parametrize("scaling", [False, True])
@pytest.mark.parametrize("head", heads.names())
def test_every_bias_of_a_head_on_wrn40_2_starts_at_zero(head, scaling):
    network = build_model(RunSpec(network="wrn40_2", head=head, logit_scaling=scaling), (3, 8, 8), 6)
    assert not any(p.any() for name, p in network.named_parameters() if name.startswith("head.") and "bias" in name)
    if head == "maxsep":
        assert any("bias" in name for name, _ in network.head.named_parameters())


@pytest.mark.parametrize(("head", "size"), [("plain", 2_255_156), ("scaled", 2_255_156), ("maxsep", 2_255_027)])
def test_wrn40_2_with_its_head_has_the_protocols_size(head, size):
    network = build_model(RunSpec(network="wrn40_2", head=head), (3, 32, 32), 100)
    assert sum(parameter.numel() for parameter in network.parameters()) == size


def test_seeds_differ_and_repeat():
    build = lambda seed: build_model(RunSpec(seed=seed), (1, 8, 8), 10).head.weight  # noqa: E731
    assert torch.equal(build(0), build(0))
    assert not torch.equal(build(0), build(1))


@given(seed=st.integers(-(2**40), 2**40), rank=st.integers(0, 64))
def test_derived_seeds_suit_torch_and_differ_by_purpose_and_rank(seed, rank):
    values = {derive(seed, "order", rank), derive(seed, "dropout", rank), derive(seed, "order", rank + 1)}
    assert len(values) == 3
    assert all(0 <= value < 2**63 for value in values)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_pipeline_normalises_raw_images(channels_last):
    mean, std = torch.tensor([0.5, 0.2, 0.1]), torch.tensor([0.3, 0.2, 0.1])
    images = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    network = MLP(5, shape=(3, 8, 8)).eval()
    pipeline = Pipeline(network, mean, std, channels_last=channels_last).eval()
    expected = (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    normalised = pipeline.normalise(images)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert normalised.is_contiguous(memory_format=layout)
    torch.testing.assert_close(normalised, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pipeline(images), network(expected), rtol=1e-4, atol=1e-5)


def test_the_normalisation_is_no_part_of_the_weights():
    pipeline = Pipeline(MLP(5), torch.zeros(1), torch.ones(1))
    assert all(name.startswith("network.") for name in pipeline.state_dict())


@pytest.mark.parametrize(
    ("mode", "given", "asked"),
    [
        (None, "", (None, None)),
        (None, "combo_kernels,epilogue_fusion", (None, {"combo_kernels": True, "epilogue_fusion": True})),
        ("default", "", ("default", None)),
    ],
)
def test_options_of_the_compiler_are_passed_on(monkeypatch, mode, given, asked):
    found = []
    monkeypatch.setattr(torch, "compile", lambda f, dynamic, mode, options: found.append((mode, options)) or f)
    network = build_model(RunSpec(head="plain"), (1, 8, 8), 10)
    Pipeline(network, torch.zeros(1), torch.ones(1)).compile_backbone(4, mode, given)
    assert found == [asked]
