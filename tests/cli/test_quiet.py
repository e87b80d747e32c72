import logging

import lightning_fabric  # noqa: F401 - it sets the level of its loggers when it is imported
import pytest
from lightning_fabric.utilities.rank_zero import rank_zero_info, rank_zero_warn

from maxsep.cli.quiet import CHATTY, quiet


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
