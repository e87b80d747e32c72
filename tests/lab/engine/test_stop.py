import os
import signal
import threading

import pytest

from maxsep.lab.engine.progress import StopRequest


def test_the_first_signal_is_remembered_and_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.signum == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_second_interrupt_is_meant():
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_outside_the_main_thread_nothing_is_touched():
    before = signal.getsignal(signal.SIGTERM)
    inside = []

    def work():
        with StopRequest():
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]


def test_a_signal_is_not_lost_when_the_block_fails():
    def blocked():
        os.kill(os.getpid(), signal.SIGTERM)
        raise BlockingIOError("another process is training it")

    with pytest.raises(SystemExit) as stopped, StopRequest():
        blocked()
    assert stopped.value.code == 128 + signal.SIGTERM
    assert isinstance(stopped.value.__cause__, BlockingIOError)
    with pytest.raises(ValueError, match="no signal"), StopRequest():
        raise ValueError("no signal came")
