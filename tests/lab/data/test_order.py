"""The order of the training images: named by the labels' fingerprint, set from the files, checked before a run."""

import pytest
import torch

from maxsep.lab.data import load, order, prepare, with_order
from maxsep.lab.spec import RunSpec

CIFAR100 = RunSpec(dataset="cifar100", head="plain")


@pytest.fixture
def official(tmp_path, write_cifar, monkeypatch):
    """A tiny CIFAR-100 whose order counts as the official one."""
    write_cifar(tmp_path, "cifar100")
    labels = load("cifar100", tmp_path).train.labels
    monkeypatch.setitem(order._OFFICIAL, "cifar100", order.fingerprint(labels))
    return tmp_path


def test_specs_get_the_order_of_the_files(official):
    staged = CIFAR100.replace(start_from=CIFAR100, epochs=3)
    first, second, other = with_order([CIFAR100, staged, RunSpec(dataset="osr_cifar+_0")], official)
    assert (first.data_order, second.data_order, second.start_from.data_order) == ("official",) * 3
    assert other.data_order == ""
    assert prepare(first, official).train.num_classes == 100


def test_files_of_another_order_are_no_official_ones(tmp_path, write_cifar):
    write_cifar(tmp_path, "cifar100")
    assert with_order([CIFAR100], tmp_path) == [CIFAR100]
    with pytest.raises(ValueError, match="data_order"):
        prepare(CIFAR100.replace(data_order="official"), tmp_path)


def test_without_files_the_order_is_that_of_a_download(tmp_path):
    assert with_order([CIFAR100], tmp_path / "nothing") == [CIFAR100.replace(data_order="official")]


def test_the_fingerprint_depends_on_the_order():
    labels = torch.arange(100).repeat(5)
    assert order.fingerprint(labels) == order.fingerprint(labels.clone())
    assert order.fingerprint(labels) != order.fingerprint(labels.flip(0))


@pytest.mark.parametrize(
    ("dataset", "value"), [("cifar10", "official"), ("osr_cifar+_0", "official"), ("cifar100", "x")]
)
def test_only_cifar100_has_an_order(dataset, value):
    with pytest.raises(ValueError, match="data_order"):
        RunSpec(dataset=dataset, data_order=value)


def test_the_order_is_part_of_the_name():
    assert CIFAR100.replace(data_order="official").digest != CIFAR100.digest
