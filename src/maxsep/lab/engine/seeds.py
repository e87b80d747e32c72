"""Independent seeds for everything random in a run, all derived from the run's one seed."""

from __future__ import annotations

import hashlib


def derive(seed: int, purpose: str, rank: int = 0) -> int:
    """Derive the seed of one purpose, such as `network`, `head`, `order`, `augmentation` or `dropout`.

    Purposes do not share a stream: drawing more numbers for one never shifts another, so heads that are compared
    under one seed start from the same backbone and see the same batches.

    >>> derive(0, "network") == derive(0, "network"), derive(0, "network") == derive(0, "head")
    (True, False)
    """
    digest = hashlib.sha256(f"maxsep/{seed}/{purpose}/{rank}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
