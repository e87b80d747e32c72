"""`python -m maxsep`: src/maxsep/__main__.py."""

import runpy

import pytest


def test_the_module_is_the_program(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["maxsep", "matrix", "3"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("maxsep", run_name="__main__")
    assert stopped.value.code == 0
    assert "120.0000" in capsys.readouterr().out
