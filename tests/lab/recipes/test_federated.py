"""The recipe with clients for real: one round, and what the report says of it."""

from maxsep.lab import grid, recipes
from maxsep.lab.report import render

RECIPE = recipes.get("federated")


def test_one_round_of_every_arm(tmp_path):
    runs = tmp_path / "runs"
    summary = grid.reproduce(RECIPE, seeds=1, epochs=1, max_train=100, max_test=60, runs=runs)
    assert (summary.failed, len(summary.finished), summary.status) == ([], 8, 0)
    page = render(runs, tmp_path / "report").read_text()
    for told in (
        '<section id="federated">', "20 clients, Dirichlet 0.1", "5 local epochs a round, 1 round, 1 seed",
        "etf (by cosine, rotation 0, temperature 0.1)",
    ):  # fmt: skip
        assert told in page, told


def test_fewer_images_than_clients_are_told(tmp_path):
    summary = grid.reproduce(RECIPE, seeds=1, epochs=1, only="head=plain", max_train=12, runs=tmp_path)
    assert "12 training images cannot be shared by 20 clients" in str(summary.failed)
