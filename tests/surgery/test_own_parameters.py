"""What grow promises of the parameters that they replace."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from maxsep import MaxSeparationHead, grow
from maxsep.surgery.own_parameters import refuse_computed, refuse_shared


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_what_is_computed_is_named_with_what_computes_it(name):
    head = MaxSeparationHead(6, 5)
    refuse_computed(head, "turned")
    with pytest.raises(ValueError, match=rf"MaxSeparationHead computes its {name} .* cannot be turned\. Make it"):
        refuse_computed(prune.random_unstructured(head, name, 0.5), "turned")
    with pytest.raises(ValueError, match=rf"computes its {name} from other parameters \(weight or spectral"):
        refuse_computed(parametrizations.weight_norm(MaxSeparationHead(6, 5), name), "grown")


def test_a_head_without_bias_has_none_that_is_computed():
    refuse_computed(MaxSeparationHead(6, 5, bias=False), "turned")


def test_sharing_is_refused_unless_both_are_changed():
    first, second = MaxSeparationHead(6, 5), MaxSeparationHead(6, 5)
    second.bias = first.bias
    model = nn.ModuleDict({"a": first, "b": second})
    refuse_shared(model, [first, second], "grown")
    with pytest.raises(ValueError, match=r"head at 'a' shares a parameter with 'b\.bias', .* wrong once it is grown"):
        refuse_shared(model, [first], "grown")


CHANGES = {
    "grown": lambda model, **more: grow(model, 2, **more),
}


@pytest.fixture(params=CHANGES)
def done(request):
    return request.param


def train(model, optimiser, x):
    optimiser.zero_grad()
    model(x).square().sum().backward()
    optimiser.step()


def test_heads_that_share_a_weight_go_on_sharing_it(done):
    heads, x = nn.ModuleList(MaxSeparationHead(6, 5) for _ in range(2)), torch.randn(3, 6)
    heads[1].weight = heads[0].weight
    optimiser = torch.optim.SGD(heads.parameters(), lr=0.1, momentum=0.9)
    train(lambda x: torch.cat([head(x) for head in heads]), optimiser, x)
    before = [head(x) for head in heads]
    CHANGES[done](heads, optimiser=optimiser)
    assert heads[0].weight is heads[1].weight
    assert heads[0].bias is not heads[1].bias
    assert optimiser.param_groups[0]["params"] == list(heads.parameters())
    assert set(optimiser.state) == set(heads.parameters())
    for head, logits in zip(heads, before, strict=True):
        torch.testing.assert_close(head(x)[:, :5], logits, atol=1e-6, rtol=1e-5)


def test_what_something_else_needs_as_it_is_is_left_alone(done):
    embedding, head = nn.Embedding(4, 6), MaxSeparationHead(6, 5)
    head.weight = embedding.weight
    model = nn.ModuleDict({"words": embedding, "head": head})
    with pytest.raises(ValueError, match=rf"shares a parameter with 'words\.weight'.*wrong once it is {done}"):
        CHANGES[done](model)
    assert model["head"] is head


def test_a_computed_weight_is_refused(done):
    head = parametrizations.weight_norm(MaxSeparationHead(6, 5))
    with pytest.raises(ValueError, match=rf"computes its weight.*cannot be {done}.*remove_parametrizations"):
        CHANGES[done](head)


def test_a_head_made_in_inference_mode_can_be_trained(done):
    model, x = nn.Sequential(MaxSeparationHead(4, 5)), torch.randn(3, 4)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimiser, x)
    with torch.inference_mode():
        alone = CHANGES[done](model[0])
        CHANGES[done](model, optimiser=optimiser)
    assert not alone.weight.is_inference()
    before = model[0].weight.clone()
    train(model, optimiser, x)
    assert not torch.equal(model[0].weight, before)


def test_what_lbfgs_knows_of_the_whole_model_is_refused(done):
    model, x = nn.Sequential(nn.Linear(4, 6), MaxSeparationHead(6, 5)), torch.randn(3, 4)
    optimiser, head = torch.optim.LBFGS(model.parameters(), max_iter=2), model[1]

    def closure():
        optimiser.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    with pytest.raises(TypeError, match=r"state of LBFGS .*build a new one"):
        CHANGES[done](model, optimiser=optimiser)
    assert model[1] is head
