import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from maxsep.lab.networks import WideResNet40


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return WideResNet40(100)


def test_there_are_forty_convolutions_of_the_planned_widths_and_strides(network):
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 40
    assert all(c.bias is None for c in convolutions)
    assert [(b.conv1.in_channels, b.conv1.out_channels, b.conv1.stride[0]) for b in network.blocks] == [
        *[(16, 32, 1), *[(32, 32, 1)] * 5],
        *[(32, 64, 2), *[(64, 64, 1)] * 5],
        *[(64, 128, 2), *[(128, 128, 1)] * 5],
    ]
    assert network.blocks(network.stem(torch.randn(2, 3, 32, 32))).shape == (2, 128, 8, 8)


def test_shortcuts_are_convolutions_exactly_where_the_width_changes(network):
    shortcuts = [block.shortcut for block in network.blocks]
    assert [number for number, shortcut in enumerate(shortcuts) if shortcut is not None] == [0, 6, 12]
    assert [(s.kernel_size, s.stride[0]) for s in shortcuts if s is not None] == [((1, 1), 1), ((1, 1), 2), ((1, 1), 2)]


def test_a_widening_block_activates_what_its_shortcut_sees_and_others_do_not(network):
    network.eval()
    for block in (network.blocks[6], network.blocks[7]):
        x = torch.randn(2, block.conv1.in_channels, 8, 8)
        active = F.relu(block.norm1(x))
        change = block.conv2(F.relu(block.norm2(block.conv1(active))))
        expected = change + (x if block.shortcut is None else block.shortcut(active))
        assert torch.equal(block(x), expected)


def test_features_are_activated_and_averaged(network):
    network.eval()
    images = torch.randn(2, 3, 32, 32)
    maps = F.relu(network.norm(network.blocks(network.stem(images))))
    torch.testing.assert_close(network.features(images), maps.mean((2, 3)))


def test_single_units_are_dropped_between_the_convolutions_of_a_block(network):
    block, seen = network.blocks[3], []
    hooks = [
        block.dropout.register_forward_hook(lambda _, inputs, output: seen.extend([inputs[0], output])),
        block.conv2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])),
    ]
    with torch.no_grad():
        block.train()(torch.randn(64, 32, 8, 8))
    for hook in hooks:
        hook.remove()
    before, after, last = seen
    assert last is after
    there, kept = before > 0, after > 0
    torch.testing.assert_close(after[kept], before[kept] / 0.7)
    share = (kept.sum() / there.sum()).item()
    assert share == pytest.approx(0.7, abs=0.01)
    assert bool(kept.flatten(2).any(2).all())  # no whole channel goes


def test_convolutions_start_normal_by_fan_out_norms_at_one_and_the_bias_at_zero(network):
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight, area = module.weight, module.kernel_size[0] ** 2
            expected = math.sqrt(2 / (area * module.out_channels))
            slack = 4 / math.sqrt(2 * weight.numel())  # four standard errors of a normal sample
            assert weight.std().item() == pytest.approx(expected, rel=slack)
            assert abs(weight.mean().item()) < 4.5 * expected / math.sqrt(weight.numel())
        if isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert not module.bias.any()
    # tails of a normal distribution: 0.27 % beyond three standard deviations
    last = network.blocks[-1].conv2.weight
    beyond = (last.abs() > 3 * math.sqrt(2 / (9 * 128))).double().mean().item()
    assert beyond == pytest.approx(0.0027, abs=0.0006)
    assert not network.head.bias.any()
    bound = 1 / math.sqrt(128)
    assert bound * 0.99 < network.head.weight.abs().max().item() <= bound
