"""Start the ranks of a script as real processes."""

import socket
import subprocess
import sys
from pathlib import Path


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
