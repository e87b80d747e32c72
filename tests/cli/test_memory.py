from maxsep.cli import memory


def test_the_smaller_of_free_memory_and_the_groups_limit_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_LIMIT", tmp_path)
    monkeypatch.setattr(memory, "_free_memory", lambda: 1000)
    assert memory.available_memory() == 1000
    (tmp_path / "memory.max").write_text("500\n")
    (tmp_path / "memory.current").write_text("200\n")
    assert memory.available_memory() == 300
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() == 1000


def test_a_system_that_does_not_tell_has_four_gibibytes(monkeypatch):
    monkeypatch.setattr(memory, "_free_memory", lambda: None)
    monkeypatch.setattr(memory, "_group_memory", lambda: None)
    assert memory.available_memory() == 4 * 2**30


def test_this_system_tells():
    assert memory.available_memory() > 2**20
