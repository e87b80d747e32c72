"""What was compiled once is launched directly, but only for arguments of the same kind."""

import itertools
import sys
import types

import pytest
import torch

from maxsep.ops import launching

OPTIONS = {"num_warps": 4, "WIDTH": 64, "OFFSET": True}  # not in the order of the arguments
DEVICE = torch.device("cuda", 0)
NUMBERS = (0.5, 3, 32)
IS_KNOWN = launching.is_known.__wrapped__  # asks again


class Compiled:
    """What a launch returns, and what is then launched itself."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        return lambda *given, **named: self.launches.append((grid, given, named))


class Kernel:
    """A kernel that notes how it is launched, and compiles something each time, or nothing as an interpreter does."""

    arg_names = ("x", "first", "second", "scale", "start", "size", "OFFSET", "WIDTH")
    pre_run_hooks = ()

    def __init__(self, compiles=True):
        self.launches, self.compiled, self.compiles = [], [], compiles

    def fn(self):
        """Stand for the function that is compiled."""

    def __getitem__(self, grid):
        def launch(*given, **options):
            self.launches.append((grid, given, options))
            self.compiled.append(Compiled())
            return self.compiled[-1] if self.compiles else None

        return launch


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """Nothing compiled before, and a version of Triton that is known."""
    monkeypatch.setattr(launching, "_launchers", {})
    monkeypatch.setattr(launching, "is_known", lambda: True)


@pytest.fixture
def kernel():
    return Kernel()


def description(dtype=torch.bfloat16):
    return types.SimpleNamespace(base=torch.empty(1, dtype=dtype))


def pointers(*starts, dtype=torch.float32):
    """Tensors of which each starts so many numbers after a multiple of 16 bytes; None for None."""
    return tuple(None if start is None else torch.empty(64, dtype=dtype)[start:] for start in starts)


def launch(kernel, described=None, given=None, numbers=NUMBERS, device=DEVICE, grid=(7,), **changes):
    """Launch with what is usual but for what is given."""
    described = (description(),) if described is None else described
    given = pointers(0, 0) if given is None else given
    launching.launcher(kernel, device, OPTIONS | changes)(grid, described, given, numbers)


def test_the_first_launch_asks_and_later_ones_go_directly(kernel):
    launcher = launching.Launcher(kernel, OPTIONS)
    x, y, first, second = description(), description(), pointers(0, 0), pointers(0, 4)
    launcher((7,), (x,), first, NUMBERS)
    assert kernel.launches == [((7,), (x, *first, *NUMBERS), OPTIONS)]
    (compiled,) = kernel.compiled
    assert compiled.launches == []  # the kernel has launched it
    launcher((8,), (y,), second, (0.7, 5, 64))
    launcher((9, 2), (x,), first, NUMBERS)
    assert len(kernel.launches) == 1
    # constants in the order of the arguments, and nothing of what only the compiler wants to know
    (one, given, named), (two, *_) = compiled.launches
    assert one[:3] == (8, 1, 1)
    assert two[:3] == (9, 2, 1)
    assert given == (y, *second, 0.7, 5, 64, True, 64)
    assert named == {}


def test_there_is_one_launcher_for_what_is_compiled_once(kernel):
    found = launching.launcher(kernel, DEVICE, OPTIONS)
    assert launching.launcher(kernel, torch.device("cuda:0"), dict(OPTIONS)) is found
    launch(kernel)
    launch(kernel)
    assert len(kernel.launches) == len(kernel.compiled[0].launches) == 1


def test_pointers_of_another_alignment_ask_again(kernel):
    for starts in ((0, 0), (0, 1), (1, 0), (1, 1), (0, None)):
        launch(kernel, given=pointers(*starts))
    assert len(kernel.launches) == 5
    for starts in ((4, 8), (8, 3), (2, 4), (3, 3), (8, None)):
        launch(kernel, given=pointers(*starts))
    assert len(kernel.launches) == 5
    assert [len(compiled.launches) for compiled in kernel.compiled] == [1] * 5


@pytest.mark.parametrize("other", [
    {"device": torch.device("cuda", 1)}, {"described": (description(torch.float16),)},
    {"given": pointers(0, 0, dtype=torch.float16)}, {"given": pointers(1, 0, dtype=torch.float64)},
    {"OFFSET": False}, {"WIDTH": 128}, {"num_warps": 8},
])  # fmt: skip
def test_another_device_type_or_option_asks_again(kernel, other):
    launch(kernel)
    launch(kernel, **other)
    assert len(kernel.launches) == 2
    launch(kernel)
    launch(kernel, **other)
    assert len(kernel.launches) == 2
    assert [len(compiled.launches) for compiled in kernel.compiled] == [1, 1]


@pytest.mark.parametrize(("number", "same", "others"), [
    (3, (5, 0x7FFF_FFFF), (1, 16, 2**31 + 3, 2**40 + 3)), (32, (16, 0), (1, 8, 2**32)), (1, (), (2, 0)),
    (0.5, (0.25, 1.0, 16.0), ()),
])  # fmt: skip
def test_numbers_that_the_compiler_tells_apart_ask_again(kernel, number, same, others):
    launch(kernel, numbers=(number,))
    for other in same:
        launch(kernel, numbers=(other,))
    assert len(kernel.launches) == 1
    for asked, other in enumerate(others, 2):
        launch(kernel, numbers=(other,))
        assert len(kernel.launches) == asked


POINTERS = [None, *(pointer for dtype in (torch.float32, torch.bfloat16) for pointer in pointers(0, 1, 8, dtype=dtype))]
INTEGERS = [0, 1, 2, 16, 17, 48, -1, -16, -17, *(2**power + more for power in (31, 32, 62) for more in (-1, 0, 1, 16))]


@pytest.mark.parametrize(("where", "values"), [("given", POINTERS), ("numbers", [0.5, 1.0, *INTEGERS])])
def test_what_goes_directly_is_what_triton_would_have_chosen(where, values):
    specialised = getattr(pytest.importorskip("triton.runtime.jit"), "native_specialize_impl", None)
    if specialised is None:
        pytest.skip("this version of Triton is not asked in this way")
    backend = pytest.importorskip("triton.backends.nvidia.compiler").CUDABackend
    direct = 0
    for one, other in itertools.product(values, repeat=2):
        kernel = Kernel()
        for value in (one, other):
            launch(kernel, **{where: (value,)})
        if len(kernel.launches) == 1:
            assert specialised(backend, one, False, True, True) == specialised(backend, other, False, True, True)
            direct += 1
    assert len(values) < direct < len(values) ** 2


def test_another_kernel_asks_for_itself(kernel):
    other = Kernel()
    launch(kernel)
    launch(other)
    assert len(kernel.launches) == len(other.launches) == 1


def test_an_interpreter_is_always_asked():
    kernel = Kernel(compiles=False)
    for _ in range(3):
        launch(kernel)
    assert len(kernel.launches) == 3
    assert not any(compiled.launches for compiled in kernel.compiled)


def test_an_unknown_version_is_always_asked(kernel, monkeypatch):
    monkeypatch.setattr(launching, "is_known", lambda: False)
    for _ in range(3):
        launch(kernel)
    assert len(kernel.launches) == 3
    assert not any(compiled.launches for compiled in kernel.compiled)


@pytest.mark.parametrize("known", [True, False])
def test_versions_that_were_tried_are_known(known, monkeypatch):
    for version in ("3.6.0", "3.7.1", "3.7.0+gitabcdef", "3.6") if known else ("3.5.9", "3.8.0", "4.6.0", "2.7"):
        monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__=version))
        assert IS_KNOWN() is known, version


def test_other_makes_of_gpu_are_not_known(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__="3.6.0"))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not IS_KNOWN()


def test_a_kernel_with_hooks_is_always_asked(kernel):
    launch(kernel)
    kernel.pre_run_hooks = [lambda *given, **options: None]
    launch(kernel)
    assert len(kernel.launches) == 2
    kernel.pre_run_hooks = []
    launch(kernel)
    assert len(kernel.launches) == 2


def test_numbers_of_other_types_are_asked_for(kernel):
    for first in (0.5, True, 3, 0.25, False, 5):
        launch(kernel, numbers=(first, *NUMBERS[1:]))
    assert len(kernel.launches) == 3


def test_kernels_of_pointers_alone_are_launched_where_the_first_of_them_is(kernel):
    given = pointers(0, None)
    for _ in range(2):
        launching.launch(kernel, (3, 4), given, NUMBERS, **OPTIONS)
    assert kernel.launches == [((3, 4), (*given, *NUMBERS), OPTIONS)]
    ((grid, direct, named),) = kernel.compiled[0].launches
    assert (grid[:3], direct, named) == ((3, 4, 1), (*given, *NUMBERS, True, 64), {})
    launch(kernel, (), given, device=given[0].device)
    assert len(kernel.launches) == 1


class Description:
    """A description that counts how often one was made."""

    made = 0

    def __init__(self, base, block):
        Description.made += 1
        self.base, self.shape, self.strides, self.block = base, list(base.shape), list(base.stride()), block


def test_a_description_becomes_that_of_the_next_matrix(monkeypatch):
    monkeypatch.setattr(Description, "made", 0)
    described = launching.Described(Description, [128, 64])
    first, second = torch.empty(300, 64), torch.empty(100, 80)[:, :64]
    found = described.at(first)
    assert found.base is first
    assert described.at(first) is found
    assert described.at(second) is found
    assert found.base is second
    assert (found.shape, found.strides, found.block) == ([100, 64], [80, 1], [128, 64])
    assert described.at(first).shape == [300, 64]
    assert Description.made == 1


@pytest.mark.parametrize("form", ["tile_form", "hopper_form"])
def test_real_descriptions_become_those_of_the_next_matrix(form):
    form = pytest.importorskip(f"maxsep.ops.fused.{form}")
    matrices = [torch.empty(rows, 128, dtype=torch.bfloat16) for rows in (300, 100)]
    described = launching.Described(form.described, [128, 64])
    for matrix in matrices:
        found, anew = described.at(matrix), form.described(matrix, [128, 64])
        assert found.base is anew.base
        assert all(vars(found)[name] == value for name, value in vars(anew).items() if name != "base")
