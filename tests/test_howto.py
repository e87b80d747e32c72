"""The how-to pages do what they print: their files are written, and their commands run, in an empty folder.

A block with a title is a file. A block of bash that starts with one of COMMANDS is run; a block of text behind it holds
lines of its output. `howto/timm_train.py` stands for timm's train.py, which timm's package lacks.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
PAGES = [page for page in sorted((ROOT / "docs" / "howto").glob("*.md")) if ' title="' in page.read_text()]
BLOCK = re.compile(r'^```(python|bash|text)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMANDS = ("python ", "torchrun ", "accelerate ")


def photographs(folder):
    """Write coloured noise in the folders that timm's script reads."""
    random = np.random.default_rng(0)
    for part in ("train", "validation"):
        for channel, name in enumerate(("daisy", "rose", "tulip")):
            (folder / part / name).mkdir(parents=True)
            for number in range(16):
                pixels = random.integers(0, 80, (32, 32, 3), dtype=np.uint8)
                pixels[:, :, channel] += 150
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")


def run(command, folder):
    """Run a command of a page as somebody would who installed maxsep into the active environment."""
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": scripts, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.distributed
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_prints(page, tmp_path):
    if page.stem == "timm":
        photographs(tmp_path / "photos")
        (tmp_path / "pytorch-image-models").mkdir()
        shutil.copy(ROOT / "tests" / "howto" / "timm_train.py", tmp_path / "pytorch-image-models" / "train.py")
    output = None
    for kind, title, code in BLOCK.findall(page.read_text()):
        if title:
            (tmp_path / title).write_text(code)
        elif kind == "bash" and code.startswith(COMMANDS):
            done = run(code, tmp_path)
            assert done.returncode == 0, done.stderr[-3000:]
            output = done.stdout.splitlines()
        elif kind == "text":
            assert [line for line in code.splitlines() if line not in output] == []
    assert output is not None, f"{page.name} runs nothing"
