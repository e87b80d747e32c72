"""Heads with nothing trained behind the features, `maxsep.heads.on_features`: etf."""

import pytest
import torch
from torch import nn

from maxsep import grow, heads, simplex


@pytest.fixture
def x():
    return torch.randn(7, 12, generator=torch.Generator().manual_seed(0))


def test_etf_is_the_simplex_on_the_features(x):
    head = heads.build("etf", 12, 5, radius=0.5)
    torch.testing.assert_close(head(x), 0.5 * x[:, :4] @ simplex(5))
    cosine = heads.build("etf", 4, 5, radius=10.0, normalise=True)
    y = x[:, :4]
    torch.testing.assert_close(cosine(y), 10 * nn.functional.normalize(y, dim=1) @ simplex(5))
    reserved = heads.build("etf", 12, 5, reserved=3)
    torch.testing.assert_close(reserved(x), (x[:, :7] @ simplex(8))[:, :5])
    assert heads.build("etf", 12, 5, bias=True)(x).shape == (7, 5)
    with pytest.raises(ValueError, match="needs at least 4 of them, got in_features=3"):
        heads.build("etf", 3, 5)


def test_turned_etf_is_the_simplex_on_directions_of_all_features(x):
    head = heads.build("etf", 12, 5, radius=0.5, rotation=3)
    rows = head.directions
    torch.testing.assert_close(rows @ rows.T, torch.eye(4))
    torch.testing.assert_close(head(x), 0.5 * x @ rows.T @ simplex(5))
    assert torch.equal(heads.build("etf", 12, 5, rotation=3).directions, rows)  # whatever was drawn in between
    assert not torch.allclose(heads.build("etf", 12, 5, rotation=4).directions, rows)
    assert "rotation=3" in repr(head)
    # a head with vertices in reserve has the same coordinates for the classes that come later
    kept = heads.build("etf", 12, 3, reserved=2, rotation=3, bias=True)
    grown = grow(kept, 2)
    assert grown.rotation == 3
    torch.testing.assert_close(grown(x)[:, :3], kept(x))
    torch.testing.assert_close(grown(x), x @ rows.T @ simplex(5))


def test_directions_of_another_rotation_are_refused():
    state = heads.build("etf", 12, 5, rotation=3).state_dict()
    with pytest.raises(
        ValueError, match=r"has other directions than rotation=0 gives.*Build the head with the rotation"
    ):
        heads.build("etf", 12, 5, rotation=0).load_state_dict(state)
    state["directions"] = state["directions"].half().float()  # rounded, but the same
    heads.build("etf", 12, 5, rotation=3).load_state_dict(state)


def test_more_classes_keep_the_directions_of_the_first():
    few, many = heads.build("etf", 12, 5, rotation=0), heads.build("etf", 12, 9, rotation=0)
    torch.testing.assert_close(many.directions[:4], few.directions)


def test_directions_are_drawn_whatever_device_is_the_default():
    with torch.device("meta"):
        head = heads.build("etf", 12, 5, rotation=17, device="cpu")
    assert torch.equal(head.directions, heads.build("etf", 12, 5, rotation=17).directions)
    assert heads.optimise_prototypes(4, 3, iterations=7).device.type == "cpu"


def test_directions_move_and_are_made_as_other_tensors_are():
    head = heads.build("etf", 12, 5, rotation=0).to(torch.float64)
    assert head.class_vectors().dtype == head.directions.dtype == torch.float64
    assert head.half()(torch.zeros(2, 12, dtype=torch.float16)).dtype == torch.float16
    with torch.device("meta"):
        empty = heads.build("etf", 12, 5, rotation=0)
    assert empty.directions.is_meta
    empty.to_empty(device="cpu").reset_parameters()
    assert torch.equal(empty.directions, heads.build("etf", 12, 5, rotation=0).directions)
