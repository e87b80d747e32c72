"""Where images lie while a network is trained or tested: on its device, or on the host if they are too many."""

from __future__ import annotations

import torch

from maxsep.lab.data import Data

ROOM = 0.6
"""Part of a device's free memory that images may take: the rest is for the network."""


def place(data: Data, device: torch.device) -> Data:
    """Move data to a device; images that would leave it too little room stay on the host, and go there in batches.

    >>> from maxsep.lab.data import load
    >>> place(load("digits"), torch.device("cpu")).train.images.device
    device(type='cpu')
    """
    fits = device.type != "cuda" or data.bytes <= ROOM * torch.cuda.mem_get_info(device)[0]
    return data.to(device, images=fits)
