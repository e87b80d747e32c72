"""Which kernels take a product, and into how many parts its classes are split."""

import pytest
import torch

joined = pytest.importorskip("maxsep.ops.fused.joined", reason="no Triton for this platform")
hopper_form = pytest.importorskip("maxsep.ops.fused.hopper_form")
tile_form = pytest.importorskip("maxsep.ops.fused.tile_form")


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """A Hopper GPU with a version of Triton that is known, and no interpreter."""
    monkeypatch.setattr(joined, "is_interpreting", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(joined, "is_known", lambda: True)
    monkeypatch.setattr(joined, "processors", lambda device: 132)
    joined._hopper_form.cache_clear()
    yield
    joined._hopper_form.cache_clear()


def samples(width, batch=4096):
    return torch.empty(batch, width, dtype=torch.bfloat16)


def forms(width):
    """The forms of the log-sum-exp, the same with numbers of classes, and the gradient."""
    asked = {"forward": True}, {"forward": True, "per_class": True}, {"forward": False}
    return [joined.form_of(samples(width), **each) for each in asked]


@pytest.mark.parametrize("width", range(64, 513, 64))
def test_hopper_has_kernels_of_its_own(width):
    plain, numbered = width != 128, width in (64, 512)
    assert forms(width) == [hopper_form if plain else tile_form, hopper_form if numbered else tile_form, hopper_form]


@pytest.mark.parametrize("width", [8, 100, 520, 576, 1024])
def test_widths_that_do_not_suit_them_take_tiles(width):
    assert forms(width) == [tile_form] * 3


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_other_gpus_take_tiles(capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    assert forms(512) == [tile_form] * 3


def test_versions_of_triton_that_were_not_tried_take_tiles(monkeypatch):
    monkeypatch.setattr(joined, "is_known", lambda: False)
    assert forms(512) == [tile_form] * 3


def test_the_interpreter_takes_tiles_and_asks_for_no_gpu(monkeypatch):
    monkeypatch.setattr(joined, "is_interpreting", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", None)
    assert forms(512) == [tile_form] * 3


def test_the_gpu_is_asked_once(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: asked.append(device) or (9, 0))
    assert forms(512) == [hopper_form] * 3
    assert asked == [torch.device("cpu")]


def test_the_last_rows_have_a_kernel_of_their_own_on_hopper(monkeypatch):
    widths = range(64, 1025, 64)
    assert [width for width in widths if joined.form_of_tail(samples(width)) is hopper_form] == [128, 256, 512]
    monkeypatch.setattr(joined, "is_interpreting", lambda: True)
    assert joined.form_of_tail(samples(512)) is tile_form


def test_the_last_rows_have_none_of_their_own_on_other_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (10, 0))
    assert joined.form_of_tail(samples(512)) is tile_form


@pytest.mark.parametrize(("width", "batch", "parts"), [
    (512, 4096, 4), (520, 4096, 8), (512, 128, 132), (520, 128, 264), (512, 129, 66), (512, 1, 132), (512, 100_000, 1),
    (520, 100_000, 1),
])  # fmt: skip
def test_no_processor_is_idle(width, batch, parts):
    x = samples(width, batch)
    assert joined.parts(x) == parts
    for forward in (True, False):
        assert joined._splits(x, joined.form_of(x, forward=forward), forward=forward) == parts


def test_the_parts_are_those_of_the_form_that_is_launched():
    for width, parts in ((512, 4), (256, 8)):
        assert joined.parts(samples(width), per_class=True) == parts


@pytest.mark.parametrize(("dtype", "width", "first", "joins"), [
    (torch.bfloat16, 512, 0, True), (torch.float16, 8, 0, True), (torch.float32, 512, 0, False),
    (torch.bfloat16, 12, 0, False), (torch.bfloat16, 512, 1, False),
])  # fmt: skip
def test_products_are_joined_in_half_precision_where_the_copy_engine_takes_rows(dtype, width, first, joins):
    x = torch.empty(4 * width + first, dtype=dtype)[first:].view(4, width)
    assert joined.joins(x, torch.empty(5, width, dtype=dtype)) is joins
