"""The entrance of the program: src/maxsep/cli/main.py. What it refuses is tested with the verbs."""

import subprocess
import sys


def test_an_interruption_while_the_program_starts_is_one_line():
    code = (
        "import signal, os, importlib; m = importlib.import_module('maxsep.cli.main'); "
        "m._main = lambda: os.kill(os.getpid(), signal.SIGINT); m.main()"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (130, "maxsep: interrupted\n")


def test_a_diverged_training_is_no_bad_input():
    code = (
        "import importlib\n"
        "m, a = (importlib.import_module(f'maxsep.cli.{name}') for name in ('main', 'app'))\n"
        "def app(): raise ArithmeticError('the loss is\\nnot finite')\n"
        "a.app = app; m.main()"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (1, "maxsep: the loss is not finite\n")


def test_a_place_that_cannot_be_used_is_named_with_what_to_do(refuse_in_one_line):
    told = refuse_in_one_line("train", "--epochs", 1, "--runs", "/dev/null/runs")
    assert "/dev/null/runs" in told
    assert told.strip().endswith("not a directory. Make that place usable, or name another one.")
