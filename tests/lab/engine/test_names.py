import pytest

from maxsep.lab.engine.names import check_names
from maxsep.lab.spec import RunSpec, options


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(),
        RunSpec(dataset="folder:anywhere?size=64", network="timm/whatever"),
        RunSpec(dataset="cifar100", network="alexnet", augmentation="crop_flip", normalisation="cifar10"),
        RunSpec(network="vgg32", network_options=options(feature_size=2), augmentation="rand_augment_m6"),
        RunSpec(network="wrn40_2", normalisation="cifar10_255", schedule="cosine_steps", nesterov=True),
        RunSpec(head="hpn", loss="squared_cosine", optimiser="adamw", schedule="step"),
    ],
)
def test_known_names_pass_without_reading_anything(spec):
    check_names(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "folder:"}, r"'folder:' is no folder of images"),
        ({"dataset": "folders:x"}, r"unknown dataset 'folders:x'"),
        ({"network": "keras/resnet"}, r"unknown network 'keras/resnet'.*timm/NAME"),
        (
            {"network_options": options(nothing=1)},
            r"network 'mlp' does not take the options nothing. It takes: hidden, dropout",
        ),
        ({"augmentation": "rand_augment_m40"}, r"level of RandAugment must be from 0 to 30, got 40"),
        ({"schedule_options": options(nothing=1)}, r"schedule 'cosine' does not take the options"),
    ],
)
def test_names_that_nearly_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        check_names(RunSpec(**changes))
