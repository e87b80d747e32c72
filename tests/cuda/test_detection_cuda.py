"""Detection on a GPU gives the numbers of the CPU."""

import pytest
import torch
from PIL import Image

from maxsep.lab.detection import Wish, detect
from maxsep.lab.engine import train
from maxsep.lab.spec import Execution, RunSpec

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_detection_agrees_with_the_cpu(tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(8):
        Image.effect_noise((9, 9), 20 * number).save(tmp_path / "pictures" / f"{number}.png")
    name = f"folder:{tmp_path / 'pictures'}"
    folder = train(RunSpec(epochs=2), runs=tmp_path / "runs", progress=False, execution=Execution(device="cpu"))
    wish = Wish(outliers=(name,), draw=4, repeats=2, odin=True, magnitudes=(0.0, 0.001))
    ours, theirs = (detect(folder, wish, device=device) for device in ("cuda", "cpu"))
    assert ours["in_distribution"] == theirs["in_distribution"]
    for score, expected in theirs["sets"][name]["scores"].items():
        found = ours["sets"][name]["scores"][score]
        assert found["full"]["auroc"] == pytest.approx(expected["full"]["auroc"], abs=0.01), score
        assert found["draws"]["auroc"]["mean"] == pytest.approx(expected["draws"]["auroc"]["mean"], abs=0.01), score
