import logging
import subprocess
import sys
import warnings

import lightning_fabric  # noqa: F401 - it sets the level of its loggers when it is imported
import pytest
from lightning_fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn

from maxsep.cli import quiet as module
from maxsep.cli.quiet import CHATTY, quiet


@pytest.fixture(autouse=True)
def format_of_warnings(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)


def test_talk_is_silenced_and_warnings_are_not(capfd):
    before = [logging.getLogger(name).level for name in CHATTY]
    quiet()
    rank_zero_info("Using bfloat16 Automatic Mixed Precision (AMP)")
    with pytest.warns(UserWarning, match="something is wrong"):
        rank_zero_warn("something is wrong")
    assert capfd.readouterr().err == ""
    assert not logging.getLogger(CHATTY[0]).isEnabledFor(logging.INFO)
    for name, level in zip(CHATTY, before, strict=True):
        logging.getLogger(name).setLevel(level)


def test_our_warnings_are_one_line_and_those_of_others_keep_their_place():
    quiet()
    assert warnings.formatwarning("two\n words", UserWarning, module.__file__, 3) == "maxsep: warning: two words\n"
    assert "elsewhere.py:3: UserWarning: words" in warnings.formatwarning("words", UserWarning, "elsewhere.py", 3)


def test_a_user_sees_the_line(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "deep" / name).mkdir(parents=True)
        for i in range(2):
            (tmp_path / "deep" / name / f"{i}.ppm").write_bytes(b"P6 8 8 65535 " + bytes(8 * 8 * 3 * 2))
    line = ["train", "--dataset", "folder:deep?size=8", "--epochs", "1", "--device", "cpu", "--json"]
    found = subprocess.run(
        [sys.executable, "-m", "maxsep", *line], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == (
        "maxsep: warning: deep/a/0.ppm and 3 other images have more than 8 bits per channel, of which the upper 8 are "
        "kept. Convert to 8 bits yourself where the range is to be used otherwise.\n"
    )
