import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maxsep.lab.engine.model import Pipeline, build_model
from maxsep.lab.engine.seeds import derive
from maxsep.lab.networks import MLP
from maxsep.lab.spec import RunSpec


@pytest.mark.parametrize("network", ["mlp", "resnet32"])
def test_heads_of_one_seed_share_the_backbone(network):
    shape = (3, 16, 16)
    reference = build_model(RunSpec(network=network, head="plain"), shape, 10).state_dict()
    for head, radius in (("scaled", 0.1), ("maxsep", 0.1), ("learnable_matrix", 1.0)):
        other = build_model(RunSpec(network=network, head=head, radius=radius), shape, 10).state_dict()
        shared = [name for name in reference if not name.startswith("head.")]
        assert shared
        assert all(torch.equal(reference[name], other[name]) for name in shared)


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
