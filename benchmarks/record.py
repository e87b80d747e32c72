"""A record of measurements that is written as it grows: whatever ends a run early leaves what was found before it."""

from __future__ import annotations

import functools
import gc
import json
import sys
import time
import traceback
from pathlib import Path

import torch

from maxsep.lab.environment import commit, hardware, versions

say = functools.partial(print, flush=True)


class Record:
    """Results by part and case or as a grid of rows, what failed, and which targets are met, in one JSON file."""

    def __init__(self, out, packages=None, **settings):
        self.out, self.results, self.grid, self.failed, self.targets = out, {}, [], {}, []
        self.about = {"command": " ".join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d")}
        self.about |= {"commit": commit(Path(__file__).parent), "versions": versions() | (packages or {})}
        self.about |= {"hardware": hardware(torch.device("cuda")), **settings}

    def run(self, part, case, measure):
        """Measure a case and keep it; one that fails is named, and the others are still worth their time."""
        start = time.perf_counter()
        found = None
        try:
            found = measure()
            self.results.setdefault(part, {})[case] = found
        except Exception as problem:
            self.failed[f"{part}: {case}"] = f"{type(problem).__name__}: {problem}"
            say(f"FAILED  {part}: {case}\n{traceback.format_exc()[-600:]}")
        gc.collect()
        torch.cuda.empty_cache()
        say(f"[{part}: {case}, {time.perf_counter() - start:.0f} s]")
        self.write()
        return found

    def target(self, name, value, least=None, most=None):
        """Say whether a number is within its limits."""
        met = (least is None or value >= least) and (most is None or value <= most)
        self.targets.append({"name": name, "value": value, "least": least, "most": most, "met": met})
        limits = ", ".join(
            f"at {word} {limit}" for word, limit in (("least", least), ("most", most)) if limit is not None
        )
        say(f"{'met   ' if met else 'MISSED'}  {name}: {value:.3f} ({limits})")
        self.write()

    def write(self):
        """Write everything so far."""
        kept = {"about": self.about, "targets": self.targets, "failed": self.failed, "results": self.results}
        self.out.write_text(json.dumps(kept | ({"grid": self.grid} if self.grid else {}), indent=1) + "\n")

    def end(self):
        """Return the exit code: 1 if anything failed or a target was missed."""
        missed = sum(not target["met"] for target in self.targets)
        say(f"{len(self.targets) - missed} targets met, {missed} missed, {len(self.failed)} cases failed: {self.out}")
        return 1 if missed or self.failed else 0
