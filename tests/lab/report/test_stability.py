"""The section on unstable starts: which runs it counts, and when it says that a change explains the gain."""

import json

import pytest

from maxsep.lab.recipes.baseline import CHANGES
from maxsep.lab.recipes.cifar import PLAIN, RESNET, RESNET_ARMS, cifar
from maxsep.lab.report import sections
from maxsep.lab.report.rows import settings_of, tidy
from maxsep.lab.report.runs import collect

(CELL,) = cifar(RESNET, ("cifar10",), (0.01,))
WARM = CHANGES["warm-up"]


@pytest.fixture
def section(tmp_path, run_folder):
    """Build the section from {method: (loss of epoch 0, accuracies of seeds 123, 124, ...)}."""

    def build(arms, **changes):
        for method, (loss, accuracies) in arms.items():
            for seed, accuracy in enumerate(accuracies, 123):
                spec = method.on(CELL).replace(seed=seed, precision="bf16-mixed", **changes)
                folder = run_folder(tmp_path, spec, top1=accuracy)
                log = [{"epoch": 0, "train_loss": loss}, {"epoch": 40, "train_loss": 1.0, "top1": accuracy - 0.3}]
                (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
        return sections.start(settings_of(tidy(collect(tmp_path))))

    return build


def values(section):
    return {row.cells[0].text: [cell.value for cell in row.cells[1:]] for row in section.tables[0].rows}


LINEAR, MATRIX = {PLAIN: (3.4, (0.60, 0.61, 0.62))}, {RESNET_ARMS[1]: (1.5, (0.70, 0.71, 0.72))}


def test_rows_hold_first_loss_early_and_last_accuracy_and_both_differences(section):
    found = values(section(LINEAR | {WARM: (2.0, (0.701, 0.70, 0.72))} | MATRIX))
    assert found["linear"] == pytest.approx([3.4, 31, 61, None, None])
    assert found["linear, warm-up"] == pytest.approx([2.0, 40.7, 70.7, 9.7, 0.3], abs=1e-3)
    assert found["maxsep"] == pytest.approx([1.5, 41, 71, 10, None])


@pytest.mark.parametrize(
    ("accuracies", "explains"), [((0.701, 0.70, 0.72), True), ((0.64, 0.65, 0.67), False), ((0.60, 0.61, 0.62), False)]
)
def test_a_change_explains_the_gain_only_if_it_is_better_and_the_matrix_is_not_better_than_it(
    section, accuracies, explains
):
    shown = section(LINEAR | {WARM: (2.0, accuracies)} | MATRIX)
    assert any("warm-up" in sentence for sentence in shown.text) == explains


def test_one_seed_explains_nothing(section):
    shown = section({PLAIN: (3.4, (0.6,)), WARM: (2.0, (0.7,)), RESNET_ARMS[1]: (1.5, (0.7,))})
    assert not any("warm-up" in sentence for sentence in shown.text)


@pytest.mark.parametrize(("loss", "count"), [(2.31, 2), (2.30, 0), (float("nan"), 2)])
def test_a_run_is_unstable_above_the_loss_of_guessing(section, loss, count):
    shown = section({PLAIN: (loss, (0.6, 0.61))})
    assert shown.tables[0].rows[0].cells[1].detail.startswith(f"{count} of 2")


@pytest.mark.parametrize("change", [{"batch_size": 64}, {"dataset": "cifar100"}], ids=["setting", "earlier draw"])
def test_runs_of_other_settings_and_earlier_draws_are_left_out(section, change):
    assert section(LINEAR, **change) is None
