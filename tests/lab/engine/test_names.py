import pytest

from maxsep.lab.engine.train import check_names
from maxsep.lab.spec import Execution, RunSpec, options


@pytest.mark.parametrize(
    "spec",
    [
        RunSpec(),
        RunSpec(dataset="folder:anywhere?size=64", network="timm/whatever"),
        RunSpec(dataset="cifar100", network="alexnet", augmentation="crop_flip", normalisation="cifar10"),
        RunSpec(network="vgg32", network_options=options(feature_size=2), augmentation="rand_augment_m6"),
        RunSpec(network="wrn40_2", normalisation="cifar10_255", schedule="cosine_steps", nesterov=True),
        RunSpec(loss="logit_adjusted"),
        RunSpec(loss="label_aware_smoothing", sampler="class_balanced"),
        RunSpec(head="hpn", loss="squared_cosine", optimiser="adamw", schedule="step"),
    ],
)
def test_known_names_pass_without_reading_anything(spec):
    check_names(spec)


@pytest.mark.parametrize("loss", ["logit_adjusted", "balanced_softmax"])
def test_two_corrections_for_the_same_imbalance_are_warned_of(loss):
    told = rf"^the loss {loss} corrects the logits for the frequency of classes, and the sampler class_balanced removes"
    with pytest.warns(UserWarning, match=told) as found:
        check_names(RunSpec(loss=loss, sampler="class_balanced"))
    assert len(found) == 1
    assert str(found[0].message).endswith(
        "Take one of the two, such as the loss cross_entropy or the sampler instance."
    )


def test_a_double_correction_is_told_when_a_run_is_rehearsed():
    spec = RunSpec(loss="logit_adjusted", sampler="class_balanced", imbalance=0.1)
    with pytest.warns(UserWarning, match="together they correct twice"):
        dry_run(spec, Execution(device="cpu"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "folder:"}, r"unknown dataset 'folder:'"),
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
