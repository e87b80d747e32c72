"""Runs the very source of kernels in Gluon without a GPU: threads for its warps, barriers with phases, checked memory.

Only one thread runs at a time, and which one is drawn after every operation, so that a seed is one interleaving. Copies
fly until they are drawn too; products read their factors when they are waited for, as late as hardware might. Found are
deadlocks and loops without end, reading a slot that is not full or twice, writing to one that is still read or that not
all groups have read, results overwritten on their way out, missing fences between what threads and the copy engine do,
arrivals beyond the count of a barrier, accesses out of bounds, places of global memory that two programs write, and
whatever changes the numbers. Numbers that threads put into shared memory for others are checked like those that are
copied there. Not seen: layouts, registers, and what the compiler makes of it.
"""

from gluon_simulator.global_memory import Descriptor
from gluon_simulator.machine import RuleError
from gluon_simulator.source import simulated

__all__ = ["Descriptor", "RuleError", "simulated"]
