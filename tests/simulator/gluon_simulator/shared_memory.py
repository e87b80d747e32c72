"""Shared memory and its barriers: who has written and read what, and who may."""

import torch

from gluon_simulator.machine import RuleError, here

GROUPS = 2  # that read each slice


class Slot:
    """A part of shared memory that is copied at once; of a ring if each group reads each slice once.

    Two groups read what has the type of products, and only who has stored them reads other numbers.
    """

    def __init__(self, shape, dtype, of_ring):
        unknown = float("nan") if dtype.is_floating_point else -7
        self.data, self.of_ring = torch.full(shape, unknown, dtype=dtype), of_ring
        self.groups = GROUPS if dtype.itemsize == 2 else 1
        self.state, self.readers, self.version, self.products, self.stores = "empty", set(), 0, 0, 0

    def fly(self):
        """Become what a copy is on its way to."""
        if self.state == "flying":
            raise RuleError("a copy to a slot that another is flying to")
        if self.products:
            raise RuleError("a copy to a slot that a product still reads")
        if self.is_awaited():
            raise RuleError("a copy to a slot that is not empty")
        if here().machine.is_touched(self):
            raise RuleError("a copy to a slot that was read without a fence")
        self.state, self.readers, self.version = "flying", set(), self.version + 1
        self.data.fill_(float("nan"))

    def is_awaited(self):
        """Say whether somebody has not read what is there."""
        return self.state == "full" and len({reader for reader, _ in self.readers}) < self.groups

    def read(self, part):
        """Note who reads a part of it."""
        if self.state != "full":
            raise RuleError(f"reading a slot that is {self.state}")
        if self.of_ring and (here(), part) in self.readers:
            raise RuleError("reading a slot twice")
        self.readers.add((here(), part))

    def fill(self):
        """Become what threads have written to."""
        if self.stores:
            raise RuleError("overwriting results on their way out")
        if self.products:
            raise RuleError("writing to a slot that a product still reads")
        if self.is_awaited():
            raise RuleError("writing to a slot that is not empty")
        self.state, self.readers, self.version = "full", set(), self.version + 1
        here().touched.add(self)
        here().written.add(self)


class View:
    """A slot, or a part of it."""

    def __init__(self, slot, data):
        self.slot, self.data = slot, data

    def permute(self, order):
        return View(self.slot, self.data.permute(order))

    def slice(self, start, length, dim=0):
        return View(self.slot, self.data.narrow(dim, start, length))

    def read(self):
        """Note who reads it."""
        self.slot.read(self.data.storage_offset())

    def load(self, layout):
        """Return its numbers in registers."""
        self.read()
        here().touched.add(self.slot)
        found = self.data.clone()
        here().step()
        return found

    def store(self, numbers):
        """Write numbers that are in registers."""
        assert (numbers.dtype, numbers.shape) == (self.data.dtype, self.data.shape)
        self.slot.fill()
        self.data.copy_(numbers)
        here().step()


class Barrier:
    """Counts arrivals and bytes that are to come, and begins its next phase when there were all of both."""

    def __init__(self):
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count):
        """Say how many arrivals are a phase."""
        self.count = self.pending = count
        here().touched.add(self)

    def arrive(self, coming=0):
        """Arrive, and announce bytes."""
        self.bytes, self.pending = self.bytes + coming, self.pending - 1
        self.settle()
        here().step()

    def wait(self, parity):
        """Wait for the end of a phase, of which only the parity is known."""
        parity = int(parity)  # once, for the condition is asked often
        here().step(lambda: self.phase & 1 != parity)

    def settle(self):
        """Begin the next phase if it is time."""
        if self.pending < 0:
            raise RuleError("more arrivals than a barrier counts")
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase + 1, self.count


class Places:
    """An array in shared memory, of slots or barriers. The first that is not of barriers is the ring."""

    def __init__(self, dtype, shape, layout):
        self.shape, self.dtype = shape, dtype
        if dtype == torch.int64:
            self.all = [Barrier() for _ in range(shape[0])]
            return
        slots = [Slot(shape[1:], dtype, not here().has_ring) for _ in range(shape[0])]
        self.all, here().has_ring = [View(slot, slot.data) for slot in slots], True

    def index(self, place):
        place = int(place)
        if not 0 <= place < len(self.all):
            raise RuleError(f"place {place} of {len(self.all)}")
        return self.all[place]


def fence():
    """Let the copy engine see what threads have done so far."""
    here().touched.clear()
    here().written.clear()
    here().step()
