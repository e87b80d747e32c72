"""Folders of shards: what one process can show. The ranks are in tests/heads/test_class_parallel.py."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from maxsep import MaxSeparationHead, change_basis, load
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


def test_rows_of_the_papers_basis_do_not_go_into_another(alone, tmp_path):
    head = ClassParallelHead(4, 5)
    save_shards(head, tmp_path / "rows")
    other = MaxSeparationHead(4, 5, basis="householder")
    with pytest.raises(
        ValueError, match=r"rows in the paper's basis, the head is in 'householder'.*change_basis\(head"
    ):
        load_shards(tmp_path / "rows", other)
    whole = MaxSeparationHead(4, 5)
    load_shards(tmp_path / "rows", whole)
    x = torch.randn(3, 4)
    torch.testing.assert_close(change_basis(whole, "householder")(x), head(x))
    told = r"in the basis 'householder', but the head is in 'recursive'.*change_basis\(head, 'recursive'\)"
    with pytest.raises(ValueError, match=told):
        head.load_full_state_dict(other.state_dict())
    with pytest.raises(ValueError, match=r"that of a whole head.*load_full_state_dict"):
        head.load_state_dict(other.state_dict())


def test_load_says_who_reads_such_a_folder(alone, tmp_path):
    folder = save_shards(ClassParallelHead(4, 6), tmp_path / "head")
    with pytest.raises(ValueError, match=r"holds the rows of a class-parallel head.*maxsep\.surgery\.load_shards"):
        load(folder, MaxSeparationHead(4, 6))
