"""Global memory: loads and stores of threads, and copies between it and shared memory."""

import types

import torch

from gluon_simulator.machine import RuleError, here


class Pointer:
    """A place of a tensor, or many; remembers what a launch has written."""

    def __init__(self, base, at=0, written=None):
        self.base, self.at = _flat(base), at
        self.dtype = types.SimpleNamespace(element_ty=base.dtype)
        self.written = torch.zeros(self.base.numel(), dtype=torch.bool) if written is None else written

    def __add__(self, other):
        return Pointer(self.base, self.at + other, self.written)

    def chosen(self, mask):
        """Return which places are meant: all must be there, and nobody knows when another program has written."""
        chosen = self.at[mask].long()
        if chosen.numel() and not 0 <= chosen.min() <= chosen.max() < self.base.numel():
            raise RuleError("an access out of bounds")
        if self.written[chosen].any():
            raise RuleError("reading or writing a place in global memory that was written before")
        return chosen


def _flat(base):
    """Return a tensor from its first number to its last, with what lies between its rows."""
    last = sum((size - 1) * stride for size, stride in zip(base.shape, base.stride(), strict=True))
    return base.as_strided((last + 1,), (1,))


def load(pointer, mask, other):
    """Return the numbers at places, or another where there is a mask."""
    found = torch.full(mask.shape, other, dtype=pointer.base.dtype)
    found[mask] = pointer.base[pointer.chosen(mask)]
    return found


def store(pointer, numbers, mask):
    """Write numbers to places but where there is a mask."""
    chosen = pointer.chosen(mask)
    pointer.written[chosen] = True
    pointer.base[chosen] = numbers[mask]


class Descriptor:
    """What the copy engine knows of a matrix; what can be changed of the real one can be changed of it."""

    layout = None

    def __init__(self, base, block):
        self.base, self.shape, self.strides, self.block = base, list(base.shape), list(base.stride()), block
        self.dtype, self.item = base.dtype, base.element_size()
        self.block_type = types.SimpleNamespace(nbytes=block[0] * block[1] * self.item)

    def region(self, at):
        """Return as much of a block as there is."""
        (row, column), (rows, columns) = map(int, at), self.block
        if self.base.data_ptr() % 16 or self.strides[0] * self.item % 16 or self.strides[1] != 1:
            raise RuleError("rows that do not start at multiples of 16 bytes")
        return self.base.as_strided(self.shape, self.strides)[row : row + rows, column : column + columns]


def copy_in(source, at, barrier, view):
    """Let a block of a matrix fly to shared memory; beyond its ends there are zeros."""
    assert (source.dtype, source.block) == (view.data.dtype, list(view.data.shape))
    view.slot.fly()
    region = source.region(at)

    def land():
        view.data.zero_()
        view.data[: region.shape[0], : region.shape[1]] = region
        view.slot.state = "full"
        barrier.bytes -= source.block_type.nbytes
        barrier.settle()

    here().machine.flying.append(land)
    here().step()


def copy_out(target, at, view):
    """Let results fly to a block of a matrix; what is beyond its ends is lost."""
    if here().machine.is_touched(view.slot):
        raise RuleError("results on their way out without a fence")
    region = target.region(at)
    view.slot.stores, view.slot.state = view.slot.stores + 1, "empty"

    def land():
        region.copy_(view.data[: region.shape[0], : region.shape[1]])
        view.slot.stores -= 1

    here().stores.append(land)
    here().step()


def store_wait(pendings):
    """Wait until no more than so many results are on their way."""
    partition = here()
    partition.step(lambda: len(partition.stores) <= pendings)
