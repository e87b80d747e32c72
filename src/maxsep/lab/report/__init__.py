"""From run folders to a page: tables beside the paper's, figures, and what the numbers allow one to say."""

from maxsep.lab.report.collect import Collection, Problem, Record, collect
from maxsep.lab.report.render import build, render

__all__ = ["Collection", "Problem", "Record", "build", "collect", "render"]
