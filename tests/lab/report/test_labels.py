"""Words for data, networks and what tells settings apart."""

from maxsep.lab.report.labels import dataset_label, differences, network_label
from maxsep.lab.spec import RunSpec, options

FIRST = RunSpec(dataset="cifar100", network="resnet32", imbalance=0.01, nesterov=True)


def test_names():
    assert dataset_label("folder:/a/b/birds/") == "birds"
    assert dataset_label("osr_cifar+_0") == "CIFAR+ split 0"
    assert (network_label("timm/vit"), network_label("wrn40_2")) == ("timm/vit", "WideResNet-40-2")


def test_what_is_on_or_off_is_said_in_words():
    assert list(differences([FIRST, FIRST.replace(nesterov=False)]).values()) == ["Nesterov", "no Nesterov"]


def test_only_what_differs_among_runs_of_one_network_is_said():
    other = FIRST.replace(epochs=1, augmentation="crop_flip", network_options=options(feature_size=2))
    far = FIRST.replace(network="mlp", epochs=3)
    words = differences([FIRST, other, far])
    assert words[far] == ""
    assert (words[FIRST], words[other]) == ("augmentation none, 20 epochs", "crop and flip, feature size 2, 1 epoch")
