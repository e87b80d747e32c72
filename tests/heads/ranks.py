"""Start the ranks of a script as real processes; what every such script begins and ends with."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import distributed


def launch(script, ranks, *arguments, timeout=240):
    """Run `script RANK RANKS PORT arguments` on every rank; return the processes and what they wrote to stderr."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, Path(__file__).with_name(script)]
    processes = [
        subprocess.Popen([*command, str(rank), str(ranks), port, *arguments], stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    try:
        errors = [process.communicate(timeout=timeout)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], errors


def join():
    """Join the other ranks; return the rank, how many there are, and the last argument."""
    rank, ranks, port, argument = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    return rank, ranks, argument


def leave():
    with contextlib.suppress(RuntimeError):  # the first to finish closes its connections
        distributed.barrier()
    os._exit(0)  # threads of gloo that run while the interpreter is shut down sometimes abort the process
