"""Waiting for a condition, and what must not wait for a device."""

import time

from torch.utils._python_dispatch import TorchDispatchMode


class NoWaiting(TorchDispatchMode):
    """Fails on operations that make the host wait for the device or whose result shape depends on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "lift_fresh"), name
        return function(*args, **(kwargs or {}))


def wait_for(condition, seconds=300):
    """Wait on a machine of any load; return what is found."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
