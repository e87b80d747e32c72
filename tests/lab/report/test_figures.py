import re
import xml.etree.ElementTree as ET
from types import SimpleNamespace

import pytest
import torch

from maxsep.heads import build
from maxsep.lab.report import figures, geometry, vectors
from maxsep.lab.report.statistics import Summary
from maxsep.lab.report.svg import canvas, colour_of, finish

HISTORY = [{"epoch": epoch, "train_loss": 2.0 / (epoch + 1), "top1": 0.1 * epoch} for epoch in range(5)]


def draw():
    point = Summary(0.7, 0.01, 3)
    curve = [(0.1, point), (1.0, Summary(0.8, None, 1)), (3.0, point)]
    yield figures.radius_figure("radius", {"scaled": curve, "maxsep": curve}, point, {"maxsep": 1.0}, "accuracy")
    yield figures.frequency_figure("frequency", "T", [500, 50, 5], {"maxsep": [0.0, 0.1, 0.2]})
    yield figures.frequency_figure("crowd", "T", list(range(1, 101)), {"maxsep": [0.1] * 100, "scaled": [0.0] * 100})
    yield figures.bars_figure("bars", "T", [("balanced", {"plain": point, "etf": point}), ("0.1", {"plain": point})])
    heads = {"plain": "plain", "maxsep": "maxsep"}
    yield figures.curves_figure("loss", "T", {"plain": HISTORY, "maxsep": HISTORY}, heads)
    yield figures.accuracy_curves_figure("accuracy", "T", {"plain": HISTORY}, heads)
    yield geometry.plane_figure()
    yield geometry.space_figure()
    yield geometry.ideal_angle_figure()
    yield geometry.angles_figure("angles", "T", {"plain": [80.0, 90.0, 100.0], "maxsep": [96.4] * 3}, 96.4)


@pytest.fixture(scope="module")
def drawn():
    return list(draw())


def test_every_figure_is_sound_svg_with_words(drawn):
    for figure in drawn:
        ET.fromstring(figure.file)
        assert len(figure.alt) > 30
        assert 'role="img"' in figure.inline
        assert "DejaVu" not in figure.svg
        assert "<metadata" not in figure.svg


def test_no_figure_reaches_for_the_network(drawn):
    for figure in drawn:
        links = re.findall(r"(?:href|src|url)\s*[=(]\s*['\"]?([^'\") >]+)", figure.inline)
        assert all(link.startswith("#") for link in links), figure.id


def test_identifiers_are_unique_on_a_page(drawn):
    found = [name for figure in drawn for name in re.findall(r'\bid="([^"]+)"', figure.inline)]
    assert len(found) == len(set(found))


def test_colours_follow_the_page(drawn):
    for figure in drawn:
        assert "var(--" in figure.inline
        assert not re.search(r"#(?:000000|ffffff)\b", figure.inline), figure.id


def test_drawing_twice_gives_the_same_bytes():
    assert geometry.plane_figure().svg == geometry.plane_figure().svg


def test_a_script_in_a_label_stays_text():
    with canvas() as (figure, axes):
        axes.set_title("<script>alert(1)</script>")
        text = finish(figure, "x", "", "", '"><script>').inline
    assert "<script>" not in text


def test_a_curve_needs_two_points():
    assert figures.accuracy_curves_figure("a", "T", {"plain": HISTORY[:1]}, {"plain": "plain"}) is None


def test_angles_of_the_simplex():
    from maxsep.simplex import simplex

    angles = vectors.pairwise_angles(simplex(10).T.tolist())
    assert len(angles) == 45
    assert max(abs(angle - 96.3794) for angle in angles) < 1e-3


def test_long_names_leave_room_for_the_angles():
    label = "maxsep, radius 0.1 (label-aware smoothing, smooth head 0.4, smooth tail 0.1)"
    title = "Learned angles: CIFAR-100, ResNet-32, imbalance 0.1, stage 2, class-balanced batches, no mixup"
    figure = geometry.angles_figure("angles", title, {label: [80.0, 90.0, 100.0]}, 90.6)  # a warning would be an error
    assert "label-aware" in figure.svg


@pytest.mark.parametrize("head", ["maxsep", "plain", "scaled"])
def test_learned_vectors_are_what_features_are_multiplied_by(head, tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    module = build(head, 6, 5, 0.1 if head == "scaled" else 1.0)
    record = SimpleNamespace(spec=SimpleNamespace(head=head), folder=tmp_path)
    save_file({"head.weight": module.weight.detach()}, tmp_path / "weights.safetensors")
    found = torch.tensor(vectors.class_vectors(record), dtype=torch.float64)
    logits = module(torch.eye(6)) - module(torch.zeros(1, 6))
    scale = 0.1 if head == "scaled" else 1.0
    torch.testing.assert_close(scale * found.T, logits.detach().double(), atol=1e-6, rtol=1e-6)


LONG = "CIFAR-100, ResNet-32, imbalance 0.01, crop and flip, mixup 1, no Nesterov, weight decay 0.0002, radius 0.1"


@pytest.mark.parametrize(
    "drawing",
    [
        lambda title: figures.frequency_figure("f", title, [500, 5], {"maxsep": [0.0, 0.1]}),
        lambda title: figures.bars_figure("b", title, [("balanced", {"plain": Summary(0.7, 0.01, 3)})]),
        lambda title: figures.curves_figure("l", title, {"plain": HISTORY}, {"plain": "plain"}),
        lambda title: figures.accuracy_curves_figure("a", title, {"plain": HISTORY}, {"plain": "plain"}),
    ],
)
def test_a_long_title_takes_lines_and_no_room_of_the_axes(drawing):
    long, short = drawing(LONG), drawing("T")
    assert LONG not in long.svg
    lines = re.findall(r">([^<>]*(?:CIFAR|mixup|radius)[^<>]*)<", long.svg)
    assert " ".join(line.strip() for line in lines) == LONG
    assert all(len(line) <= 50 for line in lines)
    assert long.title == LONG, "in the words beside it the title is whole"
    heights = [float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', figure.svg)[1]) for figure in (long, short)]
    assert heights[0] - heights[1] == pytest.approx(72 * 0.18 * (len(lines) - 1), abs=0.01)


def widths(text, colour):
    """The widths of lines of a head, in points; what is not said is 1."""
    return {
        float(found[1]) if (found := re.search(r"stroke-width: ([\d.]+)", style)) else 1.0
        for style in re.findall(r'style="([^"]*)"', text)
        if f"stroke: {colour_of(colour)}" in style and "fill: none" in style
    }


def test_heads_that_train_alike_are_both_seen():
    both = {"plain": HISTORY, "maxsep": HISTORY}
    heads = {"plain": "plain", "maxsep": "maxsep"}
    for drawing in (figures.curves_figure, figures.accuracy_curves_figure):
        text = drawing("x", "T", both, heads).svg
        assert min(widths(text, "plain")) > max(widths(text, "maxsep"))


@pytest.mark.parametrize(("epochs", "most"), [(10, 10), (25, 25), (26, 13), (600, 25)])
def test_markers_of_long_curves_are_thinned(epochs, most):
    lines = [{"epoch": epoch, "top1": 0.5} for epoch in range(epochs)]
    text = figures.accuracy_curves_figure("a", "T", {"maxsep": lines}, {"maxsep": "maxsep"}).svg
    line = text[text.index('<g id="line2d', text.index('id="axes_1"')) : text.index('id="legend_1"')]
    marked = re.findall(rf"<use [^>]*fill: {colour_of('maxsep')}", line)
    assert len(marked) == most


@pytest.mark.parametrize(("low", "shown"), [(0.19, {"0.2", "0.5", "1", "2"}), (0.004, {"0.01", "0.1", "1"})])
def test_logarithmic_losses_are_written_out(low, shown):
    lines = [{"epoch": 0, "train_loss": 4.0}, {"epoch": 1, "train_loss": low}]
    text = figures.curves_figure("l", "T", {"maxsep": lines}, {"maxsep": "maxsep"}).svg
    axis = text[text.index('id="matplotlib.axis_2"') : text.index("training loss")]
    assert set(re.findall(r">([\d.]+)</text>", axis)) == shown
    assert "tspan" not in axis, "no powers"


def test_one_head_alone_is_named():
    assert ">maxsep<" in figures.frequency_figure("f", "T", [500, 5], {"maxsep": [0.0, 0.1]}).svg


def test_rings_at_one_place_can_be_told_apart():
    curve = [(radius, Summary(0.7, 0.01, 3)) for radius in (0.1, 1.0, 3.0)]
    chosen = {"scaled": 1.0, "maxsep": 1.0}
    text = figures.radius_figure("r", {"scaled": curve, "maxsep": curve}, None, chosen, "accuracy").svg
    rings = re.findall(r'<use xlink:href="#([^"]+)" x="([\d.]+)" y="[\d.]+" style="fill-opacity: 0', text)
    assert len({shape for shape, _ in rings}) == len({place for _, place in rings}) == len(rings) == 2
