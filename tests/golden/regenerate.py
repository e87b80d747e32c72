"""Write golden numbers, words and the report of the records anew: python tests/golden/regenerate.py [for pytest]."""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    folder = Path(__file__).parent
    os.environ["MAXSEP_REGENERATE_GOLDEN"] = "1"
    for stale in (folder / "numbers").glob("*.json") if len(sys.argv) == 1 else ():
        stale.unlink()  # with them go entries that no test has any more
    sys.exit(pytest.main([str(folder), "-q", "-p", "no:xdist", *sys.argv[1:]]))
