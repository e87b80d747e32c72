"""The embedded digits."""

import torch
from sklearn.datasets import load_digits as sklearn_digits

from maxsep.lab.data.digits import load_digits


def test_split_is_fixed_stratified_and_complete():
    data, again = load_digits(), load_digits()
    assert torch.equal(data.train.images, again.train.images)
    assert torch.equal(data.test.labels, again.test.labels)
    assert len(data.train) + len(data.test) == 1797
    for train, test in zip(data.train.class_counts, data.test.class_counts, strict=True):
        assert abs(test / (train + test) - 1 / 3) < 0.01


def test_images_are_the_originals_stretched():
    data = load_digits()
    original = torch.from_numpy(sklearn_digits().images)
    everything = torch.cat([data.train.images, data.test.images])
    assert everything.min() == 0
    assert everything.max() == 255
    back = (everything.double() * 16 / 255).round()[:, 0]
    assert torch.equal(back.flatten(1).sum(1).sort().values, original.flatten(1).sum(1).sort().values)
