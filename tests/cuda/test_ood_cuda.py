"""Detection on a GPU gives the numbers of the CPU."""

import copy

import pytest
import torch
from PIL import Image
from torch import nn

from maxsep import MaxSeparationHead
from maxsep.detect import ODIN, LogitDetector, MahalanobisDetector, energy, max_logit, max_softmax
from maxsep.lab.engine import train
from maxsep.lab.ood import OODProtocol, detect
from maxsep.lab.spec import Execution, RunSpec

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_detection_agrees_with_the_cpu(tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(8):
        Image.effect_noise((9, 9), 20 * number).save(tmp_path / "pictures" / f"{number}.png")
    name = f"folder:{tmp_path / 'pictures'}"
    folder = train(RunSpec(epochs=2), runs=tmp_path / "runs", progress=False, execution=Execution(device="cpu"))
    protocol = OODProtocol(outliers=(name,), draw=4, repeats=2, magnitudes=(0.0, 0.001))
    ours, theirs = (detect(folder, protocol, device=device) for device in ("cuda", "cpu"))
    assert ours["in_distribution"] == theirs["in_distribution"]
    for score, expected in theirs["sets"][name]["scores"].items():
        found = ours["sets"][name]["scores"][score]
        assert found["full"]["auroc"] == pytest.approx(expected["full"]["auroc"], abs=0.01), score
        assert found["draws"]["auroc"]["mean"] == pytest.approx(expected["draws"]["auroc"]["mean"], abs=0.01), score


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Dropout()), MaxSeparationHead(5, 4)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))


DETECTORS = {
    "max_softmax": lambda net: LogitDetector(net, max_softmax),
    "max_logit": lambda net: LogitDetector(net, max_logit, centre=True),
    "energy": lambda net: LogitDetector(net, energy, temperature=2.0),
    "odin": lambda net: ODIN(net, 10.0, 0.01),
    "mahalanobis": MahalanobisDetector,
    "mahalanobis_step": lambda net: MahalanobisDetector(net, 0.01),
}


@pytest.mark.parametrize("name", DETECTORS)
@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_detectors_agree_with_the_cpu_wherever_the_data_lies(name, place):
    torch.manual_seed(0)
    net, y = Net().double(), torch.arange(40) % 4
    train, x = (torch.randn(count, 8, dtype=torch.float64) for count in (40, 11))
    expected = DETECTORS[name](net).fit([(train, y)]).score(x)
    loader = [(part.to(place), labels.to(place)) for part, labels in zip(train.split(7), y.split(7), strict=True)]
    moved = copy.deepcopy(net).cuda()
    detector = DETECTORS[name](moved).fit(loader)
    scores = detector.score(part.to(place) for part in x.split(4))
    assert (scores.dtype, scores.device.type) == (torch.float64, "cpu")
    torch.testing.assert_close(scores, expected, rtol=1e-7, atol=1e-9)
    whole = detector.score(x.to(place))
    assert whole.device.type == "cpu"
    torch.testing.assert_close(whole, expected, rtol=1e-7, atol=1e-9)
    assert all(part.training for part in moved.modules())
    if isinstance(detector, MahalanobisDetector):
        swept = detector.sweep(loader, [0.0, 0.01])
        torch.testing.assert_close(swept[detector.magnitude], detector.score(loader), rtol=1e-7, atol=1e-9)
        assert swept[0.0].device.type == "cpu"
