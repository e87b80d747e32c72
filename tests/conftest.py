"""What every test runs under: one thread, no network, arithmetic that does not depend on the processor."""

import os
import signal

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


@pytest.fixture
def fresh():
    """A seed, and nothing that an earlier test has compiled."""
    torch.manual_seed(0)
    torch.compiler.reset()
