"""One small run with a threshold, and pictures to show it."""

import pytest
from PIL import Image

from maxsep.lab.data import Dataset
from maxsep.lab.engine import train
from maxsep.lab.serving import export
from maxsep.lab.spec import Execution, RunSpec

SPEC = RunSpec(calibration=0.2, epochs=4, batch_size=64, radius=0.5)


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return train(SPEC, runs=tmp_path_factory.mktemp("runs"), execution=Execution(device="cpu"), progress=False)


@pytest.fixture(scope="session")
def exported(run, tmp_path_factory):
    """The run in every format."""
    place = tmp_path_factory.mktemp("exported")
    return {format: export(run, place / format, format) for format in ("safetensors", "onnx")}


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """Forty test digits as PNG files."""
    folder = tmp_path_factory.mktemp("digits")
    for number, image in enumerate(Dataset.parse("digits").read().test.images[:40]):
        Image.fromarray(image[0].numpy()).save(folder / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="session")
def ldam(tmp_path_factory):
    """A run whose logits are cosines and whose probabilities are those of 30 times them; and its exports."""
    place = tmp_path_factory.mktemp("ldam")
    spec = RunSpec(head="cosine", loss="ldam", calibration=0.2, epochs=8, batch_size=64)
    run = train(spec, runs=place / "runs", execution=Execution(device="cpu"), progress=False)
    return run, {format: export(run, place / format, format) for format in ("safetensors", "onnx")}
