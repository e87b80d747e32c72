"""From run folders to a page: one tidy table, comparisons with intervals, figures, and what was reproduced."""

from maxsep.lab.report.render import write_report

__all__ = ["write_report"]
