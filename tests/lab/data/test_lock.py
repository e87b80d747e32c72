"""One holder at a time, and no stale lock after a kill."""

import subprocess
import sys
import threading

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
