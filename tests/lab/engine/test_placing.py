"""Where images lie, `maxsep.lab.engine.placing`; tests/cuda trains with images on the host."""

from types import SimpleNamespace

import pytest
import torch

from maxsep.lab.data import load
from maxsep.lab.engine.placing import ROOM, place


def test_on_a_cpu_they_stay_where_they_are():
    data = load("digits")
    placed = place(data, torch.device("cpu"))
    assert placed.train.images.data_ptr() == data.train.images.data_ptr()
    assert placed.test.labels.data_ptr() == data.test.labels.data_ptr()


@pytest.mark.parametrize(("free", "fits"), [(1000, True), (999, False)])
def test_a_gpu_gets_them_if_enough_is_left_for_the_network(monkeypatch, free, fits):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**9))
    data = SimpleNamespace(bytes=ROOM * 1000, to=lambda device, images: (device, images))
    device = torch.device("cuda", 0)
    assert place(data, device) == (device, fits)
