"""The source of kernels with stand-ins for what it imports."""

import builtins
import functools
import inspect
import random
import types
from unittest import mock

import torch

from gluon_simulator.global_memory import Pointer, copy_in, copy_out, load, store, store_wait
from gluon_simulator.machine import Machine, RuleError, current, here
from gluon_simulator.products import warpgroup_mma, warpgroup_mma_wait
from gluon_simulator.shared_memory import Barrier, Places, fence


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


def static_assert(holds, message):
    """Refuse what would not compile."""
    if not holds:
        raise RuleError(message)


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
