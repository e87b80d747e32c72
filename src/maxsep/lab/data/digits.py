"""The embedded dataset: scikit-learn's 1,797 handwritten digits. Real, offline, instant."""

from __future__ import annotations

import torch

from maxsep.lab.data.images import ImageSet, Splits, hold_out

TEST_FRACTION = 1 / 3


def load_digits() -> Splits:
    """Load the digits as (N, 1, 8, 8) uint8 with a fixed stratified split, a third for testing.

    The original grey levels 0 to 16 are stretched to 0 to 255.

    >>> data = load_digits()
    >>> len(data.train), len(data.test), data.train.shape
    (1198, 599, (1, 8, 8))
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ImportError('the digits come with scikit-learn, which is missing: pip install "maxsep[lab]"') from error
    bunch = datasets.load_digits()
    levels = torch.from_numpy(bunch.images)
    images = (levels * 255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).long()
    everything = ImageSet(images, labels, tuple(str(digit) for digit in range(10)))
    kept, held = hold_out(labels, TEST_FRACTION, seed=0)
    return Splits("digits", everything.subset(kept), everything.subset(held))
