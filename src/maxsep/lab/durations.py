"""Times as people write and read them."""

from __future__ import annotations

import re


def parse_budget(text: str | float) -> float:
    """Read a time budget in seconds from text such as `25m`, `1h30m`, `90s` or a number of seconds.

    >>> parse_budget("25m"), parse_budget("1h30m"), parse_budget("90")
    (1500.0, 5400.0, 90.0)
    """
    source = (text if isinstance(text, str) else f"{text:.12f}").strip().lower()  # a number may print as 1e-09
    pieces = re.fullmatch(r"-?(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m(?:in)?)?(?:([\d.]+)s?)?", source)
    try:
        values = [float(piece) if piece else 0.0 for piece in pieces.groups()] if pieces and source else []
    except ValueError:
        values = []
    seconds = sum(value * unit for value, unit in zip(values, (86400, 3600, 60, 1), strict=False))
    if not values or source == "-":
        raise ValueError(f"cannot read {text!r} as a time budget. Write it like 25m, 1h30m, 90s or 2h.")
    if source.startswith("-") or not seconds > 0:
        raise ValueError(f"a time budget must be more than zero, got {text!r}. Write it like 25m, 1h30m, 90s or 2h.")
    return float(seconds)


def format_seconds(seconds: float) -> str:
    """Write a time so that it reads at a glance.

    >>> format_seconds(0.4), format_seconds(75), format_seconds(5400)
    ('0.4 s', '1 min 15 s', '1 h 30 min')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
