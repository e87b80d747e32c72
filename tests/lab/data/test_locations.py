"""Where data lies: src/maxsep/lab/data/locations.py."""

import pytest

from maxsep.lab.data.locations import ROOT_VARIABLE, data_root, find_folder


def test_what_is_passed_goes_before_the_variable(tmp_path, monkeypatch):
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "variable"))
    assert data_root("cifar10", None) == tmp_path / "variable"
    assert data_root("cifar10", tmp_path) == tmp_path
    assert "~" not in str(data_root("cifar10", "~/data"))


def test_without_either_the_message_says_what_to_put_where(monkeypatch):
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="cifar10 needs a data folder: pass --data DIR or set MAXSEP_DATA"):
        data_root("cifar10", None)


def test_a_folder_is_looked_for_here_and_then_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "birds").mkdir(parents=True)
    assert find_folder("birds", "data") == tmp_path.joinpath("data", "birds").relative_to(tmp_path)
    (tmp_path / "birds").mkdir()
    assert str(find_folder("birds", "data")) == "birds"
    with pytest.raises(FileNotFoundError, match="neither cats nor data/cats is a folder"):
        find_folder("cats", "data")
