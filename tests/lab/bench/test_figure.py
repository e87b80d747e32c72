import pytest

from maxsep.lab.bench import Row, Spread, bench_figure, write_figure


def row(operation, classes, form, milliseconds, ratio=2.0):
    return Row(
        operation, classes, form, Spread(milliseconds, milliseconds / 2, milliseconds * 2), Spread(ratio, 1, 3), 3
    )


@pytest.fixture
def rows():
    found = [
        row(operation, classes, form, classes / 100, 1.0 if form == "plain" else 1.5)
        for operation in ("construction", "product", "head")
        for classes in (100, 1000)
        for form in ("maxsep", "dense", "plain")
    ]
    found.append(row("head", 1000, "fused", 9.0, 0.9))
    found.append(Row("product", 1_000_000, "dense", problem="needs about 11,175.9 GiB, 8.0 GiB are free"))
    return found


def test_the_figure_says_what_was_measured_and_what_did_not_run(rows):
    figure = bench_figure(rows, "a machine; batch 7")
    for told in ("Construction", "Product, forward", "times as long", "maxsep, fused loss", "a machine; batch 7"):
        assert told in figure.svg
    assert "dense at 1 000 000: needs about 11" in figure.svg
    assert "product, dense: needs about 11,175.9 GiB" in figure.alt


def test_files(rows, tmp_path):
    svg, png = write_figure(rows, "here", tmp_path)
    assert svg.read_text().startswith("<svg")
    assert png.read_bytes()[1:4] == b"PNG"


def test_one_size_and_nothing_that_ran_can_be_drawn():
    rows = [Row(name, 10, "dense", problem="x" * 99) for name in ("construction", "product", "head")]
    figure = bench_figure(rows, "here")
    assert "x" * 43 + "…" in figure.svg
