"""What every test runs under: one thread, no network, arithmetic that does not depend on the processor."""

import json
import os
import platform
import signal
import time
import zlib
from pathlib import Path

# Before torch is imported: newer matrix units round bfloat16 products in another way, and nothing may be downloaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

from maxsep.lab.environment import commit

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts what is in its background so, and processes under test would not hear the interrupts sent to them
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)

# Before triton is imported: without a GPU its kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A busy machine is no failure: examples are counted, not timed. Where a run decides what is taken in, it is to decide
# the same twice: the examples are the test's own there, and new ones everywhere else.
settings.register_profile("maxsep", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("maxsep")


def pytest_addoption(parser):
    parser.addoption("--sample", type=int, default=1, metavar="N", help="run one in N of the selected tests")
    parser.addoption("--sample-seed", default="", help="which ones; CI passes the commit")
    parser.addoption("--record", type=Path, metavar="FILE", help="write outcomes and seconds of all tests as JSON")


@pytest.hookimpl(trylast=True)  # after `-m` has selected
def pytest_collection_modifyitems(config, items):
    share, seed = config.getoption("--sample"), config.getoption("--sample-seed")
    if share > 1:
        ranked = sorted(items, key=lambda item: zlib.crc32((seed + item.nodeid).encode()))
        kept = set(ranked[: -(-len(items) // share)])
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def pytest_sessionfinish(session):
    """Write `--record`: the counts, and seconds and outcome of every test. Workers of xdist send theirs here."""
    path, reporter = session.config.getoption("--record"), session.config.pluginmanager.get_plugin("terminalreporter")
    if path is None or hasattr(session.config, "workerinput"):
        return
    outcomes = {key: reporter.stats.get(key, []) for key in ("passed", "failed", "error", "skipped")}
    tests = {r.nodeid: [key, round(r.duration, 1)] for key, reports in outcomes.items() for r in reports}
    about = {"commit": commit(path.absolute().parent), "date": time.strftime("%Y-%m-%d")}
    about |= {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    record = {"about": about, "counts": {key: len(reports) for key, reports in outcomes.items()}, "tests": tests}
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


@pytest.fixture(autouse=True)
def seeded():
    """The same numbers for a test in every order and process."""
    torch.manual_seed(0)


@pytest.fixture
def fresh():
    """Nothing that an earlier test has compiled."""
    torch.compiler.reset()


@pytest.fixture
def diverge(monkeypatch):
    """Let the runs fail for whose spec a condition holds."""
    from maxsep.lab import engine

    def when(condition):
        def train(spec, **settings):
            if condition(spec):
                raise ArithmeticError("the loss is not finite")
            return real(spec, **settings)

        real = engine.train
        monkeypatch.setattr(engine, "train", train)

    return when
