import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import maxsep
from maxsep.detect import Mahalanobis, collect, energy


class Net(nn.Module):
    def __init__(self, gain=1.0):
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), maxsep.MaxSeparationHead(5, 4)
        self.drop = nn.Dropout(0.5)
        self.gain, self.runs = gain, 0

    def features(self, x):
        self.runs += 1
        return self.drop(self.body(x).tanh())

    def forward(self, x):
        return self.head(self.features(x)) * self.gain


@pytest.fixture
def data():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(11, 3), torch.arange(11) % 4)


@pytest.mark.parametrize("gain", [1.0, 3.0])
def test_everything_is_gathered_in_order_and_the_model_left_in_its_mode(data, gain):
    net = Net(gain)
    logits, features, labels = collect(net, DataLoader(data, batch_size=4))
    assert net.training
    # where the model is head(features(x)) one pass a batch suffices, and one more to find that out
    assert net.runs == (4 if gain == 1 else 6)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(logits, net(data.tensors[0]))
        torch.testing.assert_close(features, net.features(data.tensors[0]))
    assert labels.tolist() == data.tensors[1].tolist()
    assert not logits.requires_grad


def test_what_is_gathered_can_be_scored(data):
    logits, features, labels = collect(Net(), DataLoader(data, batch_size=4))
    assert energy(logits).shape == (11,)
    assert Mahalanobis().fit(features, labels).score(features).shape == (11,)


def test_a_head_that_takes_something_else_is_not_used_as_a_short_cut(data):
    net = Net()
    net.forward = lambda x: x
    net.head = nn.Linear(99, 3)
    logits, features, _ = collect(net, DataLoader(data, batch_size=4), device="cpu")
    torch.testing.assert_close(logits, data.tensors[0])
    assert features.shape == (11, 5)


def test_features_that_are_layers_are_no_feature_vectors(data):
    net = nn.Sequential()
    net.features = nn.Linear(3, 2)
    logits, features, labels = collect(net, [data.tensors[0]])
    assert features is None
    assert labels is None
    assert logits.shape == (11, 2)


def test_a_model_without_parameters_and_an_object_with_logits():
    class Answer(nn.Module):
        def forward(self, x):
            return type("Output", (), {"logits": x})()

    assert collect(Answer(), [[torch.ones(1, 2)], [torch.zeros(2, 2)]]).logits.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_bad_input_is_explained(data):
    net = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="the loader yields no batches"):
        collect(net, [])
    with pytest.raises(TypeError, match=r"a batch must be a tensor or \(inputs, labels, ...\), got dict"):
        collect(net, [{"image": data.tensors[0]}])
    with pytest.raises(TypeError, match="got list of Tensor, str"):
        collect(net, [[data.tensors[0], "cat"]])
    with pytest.raises(ValueError, match="some batches have labels and some have none"):
        collect(net, [data.tensors[0], data.tensors])
    net = Net()
    net.features = lambda x: x[None]
    with pytest.raises(ValueError, match=r"model.features must give \(B, D\), got shape \(1, 11, 3\)"):
        collect(net, [data.tensors[0]])
