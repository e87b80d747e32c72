"""Image operations as tables: src/maxsep/lab/data/pixel_tables.py. The pictures themselves are in test_pixel_ops.py."""

import torch

from maxsep.lab.data.pixel_tables import OPERATIONS, VALUES, tabulate


def table(name, amount=0.0, size=8, fill=128):
    return tabulate(((name, amount),), size, size, torch.device("cpu"), fill)


def test_nothing_changes_nothing():
    tables = table("nothing")
    assert tables.source[0].equal(torch.arange(64))
    assert not tables.outside.any()
    assert tables.values[0].tolist() == list(range(256))


def test_a_translation_takes_from_the_side_and_knows_what_enters():
    tables = table("translate_x", 3.0)
    assert tables.source.view(8, 8)[0].tolist() == [3, 4, 5, 6, 7, 7, 7, 7]
    assert tables.outside.view(8, 8)[5].tolist() == [False] * 5 + [True] * 3


def test_values_of_the_operations_that_look_at_nothing_else():
    assert table("posterise", 1.0).values[0].unique().tolist() == [0, 128]
    assert table("solarise", 100.0).values[0, [99, 100, 255]].tolist() == [99, 155, 0]
    assert table("solarise_add", 22.0).values[0, [0, 105, 106, 255]].tolist() == [22, 127, 127, 0]
    assert table("invert").values[0, [0, 255]].tolist() == [255, 0]


def test_one_factor_has_one_table_of_mixtures_however_many_operations_share_it():
    blends = (("colour", 0.5), ("contrast", 0.5), ("sharpness", 1.5), ("invert", 0.0))
    tables = tabulate(blends, 8, 8, torch.device("cpu"))
    assert tables.factor.tolist() == [0, 0, 65536, 0]
    half, more = tables.mixtures.view(2, 256, 256)
    assert (half[100, 200].item(), more[100, 200].item(), more[0, 255].item()) == (150, 250, 255)


def test_every_operation_has_its_row():
    tables = tabulate(tuple((name, 1.0) for name in OPERATIONS), 8, 8, torch.device("cpu"))
    assert len(tables.source) == len(tables.values) == len(tables.kinds) == len(OPERATIONS)
    assert int(tables.kinds[:, 3:].sum()) == len({"autocontrast", "equalise"} & set(VALUES))
