"""Runs the very source of kernels in Gluon without a GPU: threads for its warps, barriers with phases, checked memory.

Only one thread runs at a time, and which one is drawn after every operation, so that a seed is one interleaving. Copies
fly until they are drawn too; products read their factors when they are waited for, as late as hardware might. Found are
deadlocks and loops without end, reading a slot that is not full or twice, writing to one that is still read or that not
all groups have read, results overwritten on their way out, missing fences between what threads and the copy engine do,
arrivals beyond the count of a barrier, accesses out of bounds, places of global memory that two programs write, and
whatever changes the numbers. Numbers that threads put into shared memory for others are checked like those that are
copied there. Not seen: layouts, registers, and what the compiler makes of it.
"""

import builtins
import functools
import inspect
import random
import threading
import types
from unittest import mock

import torch

GROUPS = 2  # that read each slice
MOST_STEPS = 50_000
MOST_SECONDS = 60

current = threading.local()


class RuleError(Exception):
    """The kernel breaks a rule."""


class StoppedError(BaseException):
    """Another partition has failed; not an Exception, so that no kernel catches it."""


def here():
    """Return the partition that runs in this thread, or the program if it has not come to them."""
    return current.place


class Partition:
    """Warps with a program of their own, and what they have under way."""

    def __init__(self, machine, name, function, given):
        self.machine, self.name, self.condition = machine, name, None
        self.products, self.stores, self.touched, self.written, self.done = [], [], set(), set(), False
        self.baton = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(function, given), daemon=True)

    def _run(self, function, given):
        current.place = self
        self.baton.acquire()
        try:
            if self.machine.error is None:
                function(*given)
                if self.products or self.stores:
                    raise RuleError(f"{self.name} ended with products or stores under way")
        except StoppedError:
            pass
        except BaseException as problem:
            self.machine.error = self.machine.error or problem
        self.done = True
        self.machine.go_on(self)

    def step(self, condition=None):
        """Let others run, and come back when the condition holds."""
        self.condition = condition
        self.machine.go_on(self)
        if self.machine.error is not None:
            raise StoppedError


class Machine:
    """A program: its partitions, and copies that are under way."""

    def __init__(self, program, seed):
        self.machine, self.program, self.error = self, program, None
        self.draw = random.Random(f"{seed} {program}")
        self.haste = self.draw.choice((0.0, 0.3))  # with none, copies land only when nothing else can happen
        self.favour = self.draw.choice((0.0, 0.9))  # how often the first that can run does, and so gets far ahead
        self.partitions, self.flying, self.touched, self.written, self.steps = [], [], set(), set(), 0
        self.has_ring, self.finished = False, threading.Event()

    def step(self):
        """Go on: before the partitions start there is nobody else."""

    def run(self, functions, warps, registers):
        """Run partitions to their end, which is that of the program."""
        if self.touched:
            raise RuleError("the copy engine may not see the barriers: there is no fence")
        assert len(functions) - 1 == len(warps) == len(registers)  # each but the first must be given some
        self.partitions = [Partition(self, f"{f.fn.__name__} {i}", f, given) for i, (f, given) in enumerate(functions)]
        self.draw.shuffle(self.partitions)
        for partition in self.partitions:
            partition.thread.start()
        self.partitions[0].baton.release()
        if not self.finished.wait(MOST_SECONDS):
            self.error = RuleError(f"no end after {MOST_SECONDS} seconds")
            raise self.error
        for partition in self.partitions:
            partition.thread.join()
        if self.error is not None:
            raise self.error
        if self.flying:
            raise RuleError("the program ended with copies under way")

    def go_on(self, now):
        """Choose who runs next, and hand over to it."""
        chosen = self._choose()
        if chosen is None:
            self.finished.set()
            return
        chosen.condition = None
        if chosen is not now:
            chosen.baton.release()
            if not now.done:
                now.baton.acquire()

    def _choose(self):
        self.steps += 1
        if self.steps > MOST_STEPS and self.error is None:
            self.error = RuleError(f"no end after {MOST_STEPS} steps")
        left = [partition for partition in self.partitions if not partition.done]
        while left and self.error is None:
            ready = [partition for partition in left if partition.condition is None or partition.condition()]
            under_way = self.flying or any(partition.stores for partition in self.partitions)
            if under_way and (not ready or self.draw.random() < self.haste):
                self._land()
            elif ready:
                return ready[0] if self.draw.random() < self.favour else self.draw.choice(ready)
            else:
                self.error = RuleError("deadlock: " + ", ".join(partition.name for partition in left))
        return left[0] if left else None  # who comes back to a failure stops

    def _land(self):
        """Let one copy arrive, in no order."""
        stores = [partition.stores for partition in self.partitions if partition.stores]
        if self.flying and (not stores or self.draw.random() < 1 - self.haste):
            self.flying.pop(self.draw.randrange(len(self.flying)))()
        else:
            self.draw.choice(stores).pop(0)()

    def is_touched(self, slot):
        """Say whether threads have used a slot since their last fence."""
        return any(slot in partition.touched for partition in self.partitions)

    def is_written(self, slot):
        """Say whether threads have written to a slot since their last fence."""
        return any(slot in partition.written for partition in self.partitions)


# Shared memory and its barriers.


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


# Global memory.


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


def static_assert(holds, message):
    """Refuse what would not compile."""
    if not holds:
        raise RuleError(message)


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


class Sums:
    """Accumulators of products that are under way: they are no numbers before these are waited for."""

    def __init__(self, numbers):
        self.numbers = numbers


def warpgroup_mma(a, b, acc, use_acc=True, *, is_async):
    """Start to add a product to accumulators."""
    assert is_async
    sums = acc if isinstance(acc, Sums) else Sums(acc)
    views = [factor for factor in (a, b) if isinstance(factor, View)]
    slots = [view.slot for view in views]
    for view in views:
        if here().machine.is_written(view.slot):
            raise RuleError("a product of numbers that were stored without a fence")
        view.read()
        view.slot.products += 1
    versions = [slot.version for slot in slots]

    def execute():
        for slot, version in zip(slots, versions, strict=True):
            if slot.version != version or slot.state != "full":
                raise RuleError("a slot was overwritten before its product")
            slot.products -= 1
        left, right = (factor.data if isinstance(factor, View) else factor for factor in (a, b))
        product = left.float() @ right.float()
        sums.numbers = sums.numbers + product if use_acc else product

    here().products.append(execute)
    here().step()
    return sums


def warpgroup_mma_wait(pending, deps):
    """Wait until no more than so many products are under way."""
    products = here().products
    while len(products) > pending:
        products.pop(0)()
    here().step()
    return deps[0] if products else deps[0].numbers


class Kernel:
    """A function of the source: called by others, or launched, with nothing compiled."""

    def __init__(self, fn, seed):
        self.fn, self.arg_names = fn, list(inspect.signature(fn).parameters)
        self._draw = random.Random(f"{seed} {fn.__name__}")

    def __call__(self, *given):
        return self.fn(*given)

    def __getitem__(self, grid):
        return functools.partial(self._launch, grid[0])

    def _launch(self, programs, *given, num_warps, **constants):
        seed = self._draw.random()
        given = [_argument(value) for value in given]
        for program in range(programs):
            current.place = Machine(program, seed)
            self.fn(*given, **constants)


def _argument(value):
    if isinstance(value, torch.Tensor):
        return Pointer(value)
    return torch.tensor(value, dtype=torch.int32) if type(value) is int else value


def _scalars(*bounds):
    return (torch.tensor(i, dtype=torch.int32) for i in range(*map(int, bounds)))


def _stand_ins(seed):
    """Return what the source imports."""
    layout = mock.Mock()  # takes anything
    language = types.SimpleNamespace(
        constexpr=lambda value: value, int32=torch.int32, int64=torch.int64, float32=torch.float32,
        SliceLayout=layout, DotOperandLayout=layout, BlockedLayout=layout, SwizzledSharedLayout=layout,
        NVMMADistributedLayout=layout, NVMMASharedLayout=layout,
        arange=lambda start, stop, layout: torch.arange(start, stop, dtype=torch.int32),
        zeros=lambda shape, dtype, layout: torch.zeros([int(size) for size in shape], dtype=dtype),
        program_id=lambda axis: torch.tensor(here().machine.program, dtype=torch.int32), static_range=range,
        static_assert=static_assert,
        allocate_shared_memory=Places, load=load, store=store, exp2=torch.exp2, maximum=torch.maximum,
        where=lambda condition, *sides: torch.where(condition, *map(torch.as_tensor, sides)),
        sum=torch.sum, max=torch.amax, warp_specialize=lambda *given: here().run(*given),
    )  # fmt: skip
    hopper = types.SimpleNamespace(
        mbarrier=types.SimpleNamespace(
            MBarrierLayout=layout, init=Barrier.init, wait=Barrier.wait, expect=Barrier.arrive, arrive=Barrier.arrive
        ),
        tma=types.SimpleNamespace(
            async_copy_global_to_shared=copy_in, async_copy_shared_to_global=copy_out, store_wait=store_wait
        ),
        fence_async_shared=fence, warpgroup_mma=warpgroup_mma, warpgroup_mma_wait=warpgroup_mma_wait,
    )  # fmt: skip

    def jit(fn=None, **options):
        return functools.partial(Kernel, seed=seed) if fn is None else Kernel(fn, seed)

    gluon = types.SimpleNamespace(jit=jit, constexpr_function=lambda function: function, language=language)
    return {
        "triton.experimental": types.SimpleNamespace(gluon=gluon),
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language.nvidia.hopper": hopper,
    }


def simulated(path, seed=0, changes=()):
    """Return the module of a source with simulated kernels, after texts of it were replaced, which must be there.

    It has an import of its own, so that nobody else ever meets a stand-in, and loops over what is known on a GPU only.
    """
    source, stand_ins = path.read_text(), _stand_ins(seed)
    for old, new in changes:
        if old not in source:
            raise ValueError(f"not in the source: {old}")
        source = source.replace(old, new)

    def imported(name, *given):
        return stand_ins[name] if name in stand_ins else builtins.__import__(name, *given)

    module = types.ModuleType(path.stem)
    module.__builtins__ = {**vars(builtins), "__import__": imported, "range": _scalars}
    exec(compile(source, path, "exec"), vars(module))
    return module
