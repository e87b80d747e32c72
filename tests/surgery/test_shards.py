"""Folders of shards: what one process can show. The ranks are in tests/heads/test_class_parallel.py."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from maxsep.heads import ClassParallelHead
from maxsep.surgery import load_shards, save_shards


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_an_optimiser_that_does_not_train_the_head_is_refused(alone, tmp_path):
    head = ClassParallelHead(4, 5)
    own = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    stranger = torch.optim.SGD(nn.Linear(4, 5).parameters(), lr=0.1, momentum=0.9)
    head.loss(torch.randn(3, 4), torch.tensor([0, 1, 2])).backward()
    own.step()
    told = r"the optimiser does not train the head's weight and bias. Pass the one"
    with pytest.raises(ValueError, match=told):
        save_shards(head, tmp_path / "first", optimiser=stranger)
    save_shards(head, tmp_path / "second", optimiser=own)
    with pytest.raises(ValueError, match=told):
        load_shards(tmp_path / "second", head, optimiser=stranger)
    assert not stranger.state
    load_shards(tmp_path / "second", head, optimiser=own)
