"""Times and memory of a step on one GPU: medians of CUDA events, from Python or of a replayed CUDA graph."""

from __future__ import annotations

import statistics
import time

import torch


def milliseconds(step, seconds=0.4, most=30):
    """Median, least and most time of a step, after three that compile and warm up."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    repeats = max(5, min(most, int(seconds / (time.perf_counter() - begin))))
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start, stop in events:
        start.record()
        step()
        stop.record()
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(stop) for start, stop in events)
    return {"ms": statistics.median(times), "least": times[0], "most": times[-1], "repeats": repeats}


def captured(step):
    """Return a function that replays a step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def peak_bytes(step, tensors):
    """Return the most memory that a step holds beside what there was before it, gradients of `tensors` included."""
    step()
    for tensor in tensors:
        tensor.grad = None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
