"""The residual block: shapes, and that it is its shortcut plus two convolutions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from maxsep.lab.networks.blocks import BasicBlock, conv3x3, stages


def pooled(in_width, width, stride):
    return nn.Sequential(nn.AvgPool2d(stride), nn.Conv2d(in_width, width, 1))


@pytest.mark.parametrize(("in_width", "width", "stride"), [(4, 4, 1), (4, 8, 2), (4, 8, 1)])
def test_a_block_adds_two_convolutions_to_its_shortcut(in_width, width, stride):
    block = BasicBlock(in_width, width, stride, pooled).eval()
    x = torch.randn(2, in_width, 8, 8)
    inner = block.norm2(block.conv2(F.relu(block.norm1(block.conv1(x)))))
    torch.testing.assert_close(block(x), F.relu(inner + block.shortcut(x)))
    assert block(x).shape == (2, width, 8 // stride, 8 // stride)
    assert isinstance(block.shortcut, nn.Identity) == ((in_width, stride) == (width, 1))


def test_every_stage_but_the_first_halves_the_picture_once():
    net = stages((2, 1, 2), (4, 8, 16), pooled)
    assert [block.conv1.stride[0] for block in net] == [1, 1, 2, 2, 1]
    assert net(torch.randn(1, 4, 16, 16)).shape == (1, 16, 4, 4)
    assert conv3x3(3, 4).bias is None
