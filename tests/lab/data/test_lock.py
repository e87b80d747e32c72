"""One holder at a time, and no stale lock after a kill."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from maxsep.lab.data.lock import locked

HOLDER = """
import sys, time
from pathlib import Path
from maxsep.lab.data.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_waits_for_another_process_and_survives_its_death(tmp_path):
    path = tmp_path / "x.lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        entered = threading.Event()

        def enter():
            with locked(path):
                entered.set()

        waiter = threading.Thread(target=enter)
        waiter.start()
        assert not entered.wait(0.3)
        holder.kill()
        assert entered.wait(10)
        waiter.join()
    assert path.exists()


def test_lock_is_released_after_an_error(tmp_path):
    for _ in range(2):
        try:
            with locked(tmp_path / "x.lock"):
                raise KeyError
        except KeyError:
            pass
    with locked(tmp_path / "x.lock"):
        assert (tmp_path / "x.lock").stat().st_size == 0


def test_a_folder_made_for_a_block_that_fails_goes_with_it_and_who_waits_makes_it_again(tmp_path):
    path = tmp_path / "new" / "deep" / "x.lock"
    held, waiting, entered = threading.Event(), threading.Event(), threading.Event()

    def fail():
        with contextlib.suppress(KeyError), locked(path):
            held.set()
            waiting.wait(10)
            raise KeyError

    def enter():
        with locked(path):
            assert path.is_file()
            (path.parent / "data").touch()
            entered.set()

    first, second = threading.Thread(target=fail), threading.Thread(target=enter)
    first.start()
    assert held.wait(10)
    second.start()
    assert not entered.wait(0.3)
    waiting.set()
    first.join()
    second.join()
    assert entered.is_set()
    assert sorted(file.name for file in path.parent.iterdir()) == ["data", "x.lock"]


@pytest.mark.parametrize("left", [[], ["data"]])
def test_only_empty_folders_are_removed(tmp_path, left):
    path = tmp_path / "new" / "x.lock"
    with contextlib.suppress(KeyError), locked(path):
        for name in left:
            (path.parent / name).touch()
        raise KeyError
    assert path.parent.exists() == bool(left)
    with contextlib.suppress(KeyError), locked(tmp_path / "x.lock"):
        raise KeyError
    assert (tmp_path / "x.lock").exists(), "a folder that was there stays as it is"


@pytest.mark.parametrize("error", [FileExistsError, FileNotFoundError])
def test_a_folder_that_goes_while_it_is_made_is_made_again(tmp_path, monkeypatch, error):
    original, times = Path.mkdir, []

    def mkdir(self, *given, **options):
        times.append(self)
        if len(times) == 1:  # another process removed it, or a parent of it, in the midst of this call
            raise error(self)
        original(self, *given, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with locked(tmp_path / "new" / "x.lock"):
        assert (tmp_path / "new" / "x.lock").is_file()
    assert len(times) == 2


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), locked(tmp_path / "file" / "new" / "x.lock"):
        pass
    (tmp_path / "x.lock").symlink_to(tmp_path / "nowhere" / "x.lock")
    with pytest.raises(FileNotFoundError), locked(tmp_path / "x.lock"):
        pass
    (tmp_path / "astray").symlink_to(tmp_path / "nowhere")
    for folder in (tmp_path / "astray", tmp_path / "astray" / "new"):
        with pytest.raises(FileExistsError), locked(folder / "x.lock"):
            pass


def test_a_folder_that_never_comes_is_an_error(tmp_path, monkeypatch):
    def mkdir(self, *given, **options):
        raise FileNotFoundError(self)  # as in a file system that takes no folders

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(FileNotFoundError, match="new"), locked(tmp_path / "new" / "x.lock"):
        pass
