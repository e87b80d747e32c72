"""Install the wheel with each extra, and the source archive, into an empty environment, and try what it promises.

python .ci/try_dist.py dist              # all of them
python .ci/try_dist.py dist save sklearn
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints"
CORE = """
import maxsep.detect, maxsep.losses, torch, importlib.util
from torch import nn
assert not importlib.util.find_spec("safetensors")
model = maxsep.attach(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)), num_classes=4)
maxsep.losses.fused_cross_entropy(model[2], torch.randn(6, 16), torch.arange(6) % 4).backward()
scores = maxsep.detect.energy(model(torch.randn(6, 8)))
plain = maxsep.fold(maxsep.grow(model, 2))
assert type(plain[2]) is nn.Linear and plain[2].out_features == 6
try:
    maxsep.save(model, "model")
except ImportError as error:
    assert ".[save]" in str(error)
"""
TRIES = {
    "": CORE,
    "save": "import maxsep; h = maxsep.MaxSeparationHead(4, 3); maxsep.load(maxsep.save(h, 'model'), h)",
    "kernels": "import triton, maxsep.ops.separate_triton",
    "sklearn": "from sklearn.datasets import load_iris; from maxsep.sklearn import MaxSeparationClassifier as M\n"
    "x, y = load_iris(return_X_y=True); assert M(random_state=0).fit(x, y).score(x, y) > 0.9",
    "vision": "import maxsep, timm, torchvision\n"
    "for m in (timm.create_model('resnet10t'), torchvision.models.resnet18()): maxsep.attach(m, 7)",
    "transformers": "import maxsep, transformers as hf\n"
    "c = hf.ResNetConfig(hidden_sizes=[8], depths=[1]); m = hf.ResNetForImageClassification(c)\n"
    "assert maxsep.attach(m, 6).config.num_labels == 6",
    "train": "maxsep train --dataset digits --epochs 1 --json",
    "report": "import matplotlib, jinja2, maxsep",
    "export": "import io, maxsep, torch, onnxruntime; h = maxsep.MaxSeparationHead(4, 3).eval()\n"
    "f = io.BytesIO(); torch.onnx.export(maxsep.fold(h), (torch.randn(2, 4),), f)\n"
    "onnxruntime.InferenceSession(f.getvalue())",
    "formats": "import datasets, pillow_heif, maxsep",
    "tensorboard": "import maxsep; from torch.utils.tensorboard import SummaryWriter; SummaryWriter('log').close()",
    "cluster": "import maxsep, ray",
    "lab": "maxsep demo --seeds 1 --epochs 2",
}
"""Python or a command of maxsep for every extra; `make docs` and `make setup` try `docs` and `dev`."""


def run(command: list[str], folder: Path) -> None:
    """Run a command in a folder; its output is shown if it fails."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"PIP_CONSTRAINT": str(CONSTRAINTS / "cpu.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


def attempt(archive: Path, extra: str) -> None:
    """Install an archive with an extra into an empty environment, try it there, and remove the environment."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True, symlinks=True)
        programs = folder / "venv" / "bin"
        run([str(programs / "pip"), "install", "--quiet", f"{archive}[{extra}]" if extra else str(archive)], folder)
        run([str(programs / "pip"), "check"], folder)
        if extra == "vision":  # as in the Makefile: for a torchvision of another build than torch
            (site,) = (folder / "venv").glob("lib/python*/site-packages")
            shutil.copy(CONSTRAINTS / "torchvision_schemas.py", site)
            (site / "torchvision_schemas.pth").write_text("import torchvision_schemas")
        code = TRIES[extra]
        if code.startswith("maxsep "):
            run([str(programs / "maxsep"), *code.split()[1:]], folder)
        else:  # the core warns of nothing, neither of a missing numpy
            run([str(programs / "python"), *(["-W", "error"] if not extra else []), "-c", code], folder)
    print(f"{archive.name}[{extra}]: installed and tried in {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    """Try the extras of the command line, or all that pyproject.toml has."""
    dist = Path(sys.argv[1]).resolve()
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    missing = set(project["optional-dependencies"]) - set(TRIES) - {"docs", "dev"}
    if missing:
        sys.exit(f"extras that are not tried: {', '.join(sorted(missing))}")
    for extra in sys.argv[2:] or TRIES:
        attempt(wheel, extra)
    attempt(source, "")


if __name__ == "__main__":
    main()
