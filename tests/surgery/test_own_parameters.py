import pytest
from torch import nn
from torch.nn.utils import parametrizations, prune

from maxsep import MaxSeparationHead
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
