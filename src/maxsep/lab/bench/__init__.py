"""Measure one's own machine: the matrix, the head and its losses against the dense matrix and a plain nn.Linear."""

from maxsep.lab.bench.cases import OPERATIONS, Form, Sizes
from maxsep.lab.bench.figure import bench_figure, write_figure
from maxsep.lab.bench.measuring import Row, measure
from maxsep.lab.bench.timing import Spread, alternate, spread_of

__all__ = [
    "OPERATIONS",
    "Form",
    "Row",
    "Sizes",
    "Spread",
    "alternate",
    "bench_figure",
    "measure",
    "spread_of",
    "write_figure",
]
