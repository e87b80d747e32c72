import pytest
import torch
from torch import nn

from maxsep import MaxSeparationHead
from maxsep.detect.reading import Reader, batches

X = torch.arange(6.0).reshape(3, 2)


def test_inputs_go_to_the_device_and_labels_to_the_cpu():
    labels = torch.tensor([1, 0, 1], device="meta")
    ((inputs, told),) = batches([(X, torch.tensor([1, 0, 1]))], "meta")
    assert (inputs.device.type, inputs.shape, told.tolist()) == ("meta", (3, 2), [1, 0, 1])
    ((inputs, told),) = batches([(labels, X, "a path")], None)  # left where they are
    assert inputs is labels
    assert told is X


def test_batches_are_read_as_they_are_asked_for():
    read = []
    source = batches((read.append(part) or part for part in X.split(1)), "cpu")
    next(source)
    assert len(read) == 1


@pytest.mark.parametrize(
    ("loader", "kind", "message"),
    [
        ([], ValueError, "the loader yields no batches, so there is nothing to read. Check the size of the dataset"),
        ([{"image": X}], TypeError, r"a batch must be a tensor or \(inputs, labels, ...\), got dict"),
        ([[X, "cat"]], TypeError, "got list of Tensor, str. Wrap the loader"),
        ([()], TypeError, "got tuple of "),
    ],
)
def test_bad_loaders_are_explained(loader, kind, message):
    with pytest.raises(kind, match=message):
        list(batches(loader, "cpu"))


class Net(nn.Module):
    """Doubles its inputs for features; `gain` makes it something else than head(features(x))."""

    def __init__(self, gain):
        super().__init__()
        self.head, self.gain, self.runs = MaxSeparationHead(2, 3), gain, 0

    def features(self, x):
        self.runs += 1
        return 2 * x

    def forward(self, x):
        return self.gain * self.head(self.features(x))


@pytest.mark.parametrize(("gain", "runs"), [(1.0, 4), (3.0, 6)])
def test_the_backbone_runs_once_a_batch_where_the_model_is_its_head_on_its_features(gain, runs):
    reader = Reader(Net(gain))
    for _ in range(3):
        logits, features = reader.read(X)
        torch.testing.assert_close(features, 2 * X)
        torch.testing.assert_close(logits, gain * reader.model.head(2 * X))
    assert reader.model.runs == runs  # one more to find out


def test_features_alone_ask_no_head():
    net = Net(1.0)
    net.head = None
    torch.testing.assert_close(Reader(net).features(X), 2 * X)


def test_a_submodule_is_no_method():
    net = nn.Sequential()
    net.features = nn.Linear(2, 4)
    assert not Reader(net).has_features
    assert Reader(net).read(X)[1] is None
