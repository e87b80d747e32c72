"""What every test runs under: one thread, no network, arithmetic that does not depend on the processor."""

import os
import signal
import subprocess
import sys

# Before torch is imported: newer matrix units round bfloat16 products in another way, and nothing may be downloaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a shell starts what is in its background so, and processes under test would not hear the interrupts sent to them
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)

# Before triton is imported: without a GPU its kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# A busy machine is no failure: examples are counted, not timed. Where a run decides what is taken in, it is to decide
# the same twice: the examples are the test's own there, and new ones everywhere else.
settings.register_profile("maxsep", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("maxsep")

# A torchvision built for CUDA cannot load its compiled operators beside a CPU torch, and then fails to import because
# it describes them to the tracer. Their schemas are enough for every model and transform that is written in Python.
# Asked in another process, because a torchvision that does load would meet them twice and take the interpreter down.
if "MAXSEP_TORCHVISION" not in os.environ:
    _asked = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False)
    os.environ["MAXSEP_TORCHVISION"] = "whole" if _asked.returncode == 0 else "schemas missing"
if os.environ["MAXSEP_TORCHVISION"] != "whole":
    _torchvision_schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _torchvision_schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture
def fresh():
    """A seed, and nothing that an earlier test has compiled."""
    torch.manual_seed(0)
    torch.compiler.reset()
