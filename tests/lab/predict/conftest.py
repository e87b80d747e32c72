"""Two small runs with thresholds, their exports, and digits as image files."""

import pytest
from PIL import Image

from maxsep.lab.data import Dataset
from maxsep.lab.engine import train
from maxsep.lab.export import export
from maxsep.lab.spec import Execution, RunSpec

CPU = Execution(device="cpu")


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    spec = RunSpec(calibration=0.2, epochs=4, batch_size=64, radius=0.5)
    return train(spec, runs=tmp_path_factory.mktemp("runs"), execution=CPU, progress=False)


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory):
    """The run in every format."""
    folder = tmp_path_factory.mktemp("exported")
    return {format: export(run, folder / format, format) for format in ("safetensors", "onnx")}


@pytest.fixture(scope="session")
def ldam(tmp_path_factory):
    """A run whose logits are cosines and whose probabilities are those of 30 times them; and its exports."""
    folder = tmp_path_factory.mktemp("ldam")
    spec = RunSpec(head="cosine", loss="ldam", calibration=0.2, epochs=8, batch_size=64)
    run = train(spec, runs=folder / "runs", execution=CPU, progress=False)
    return run, {format: export(run, folder / format, format) for format in ("safetensors", "onnx")}


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    """Forty test digits as PNG files."""
    folder = tmp_path_factory.mktemp("digits")
    for number, image in enumerate(Dataset.parse("digits").read().test.images[:40]):
        Image.fromarray(image[0].numpy()).save(folder / f"{number:03d}.png")
    return sorted(folder.iterdir())
