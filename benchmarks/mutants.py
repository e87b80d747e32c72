"""Change the core in one place at a time and see whether the tests of that file notice.

Mutants are drawn by seed from all places of the core where an operator, a number, a truth value or a condition stands.
Each is written into a clone of the repository, where the tests of its own file run with `-x`, for a minute of processor
time at most: what else the machine does decides nothing.
Survivors are listed with `why`, which is written by hand and kept when the script is run again.

    git clone . /tmp/mutants && cd /tmp/mutants && PYTHONPATH=src python benchmarks/mutants.py --out mutants.json
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import platform
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOMS = ("simplex.py", "ops", "heads", "surgery", "losses", "detect", "lab/engine")
WITHOUT = {"ops/linear_cross_entropy/hopper_kernels.py": "its kernels run on a GPU only"}
TESTS = {
    "ops/linear_cross_entropy": ["ops/test_linear_cross_entropy.py"],
    "ops/separate_kernel.py": ["ops/test_separate_triton.py"],
    "ops/tracing.py": ["ops/test_separate.py"],
    "heads/registry.py": ["heads/test_heads.py"],
    "surgery/pretrained.py": ["surgery/test_transformers.py"],
    "surgery/pointwise.py": ["surgery/test_torchvision.py"],
    "lab/engine/processes.py": ["lab/engine/test_torchrun.py"],
    "lab/engine/progress.py": ["lab/engine/test_refusals.py"],
    "lab/engine/trainer.py": ["lab/engine/test_train.py", "lab/engine/test_refusals.py"],
    "lab/engine/train.py": ["lab/engine/test_train.py", "lab/engine/test_refusals.py"],
    "lab/engine/step.py": ["lab/engine/test_step.py", "lab/engine/test_train.py"],
}
"""Tests of files without a mirror of their name; heads without one have test_heads.py and test_contract.py."""
OPERATORS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
    ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*", ast.MatMult: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
OPERATORS[getattr(ast, "Not" + "In")] = "in"  # codespell takes the name for a typing error


class Source:
    """The text of a file, with the bytes of each node of its syntax tree."""

    def __init__(self, text: str) -> None:
        self.content, self.starts = text.encode(), [0]
        for line in self.content.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node begins and ends."""
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, begin: int, end: int) -> str:
        """Return the text between two places."""
        return self.content[begin:end].decode()

    def operators(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """Yield what may replace the operators of a comparison, a sum, a product or a condition."""
        terms = getattr(node, "values", None) or [node.left, *getattr(node, "comparators", [getattr(node, "right", 0)])]
        kinds = node.ops if isinstance(node, ast.Compare) else [node.op] * (len(terms) - 1)
        for kind, left, right in zip(kinds, terms, terms[1:], strict=False):
            begin, end = self.span(left)[1], self.span(right)[0]
            if type(kind) in OPERATORS and not set(self.text(begin, end)) & set("()[]\n"):
                yield begin, end, f" {OPERATORS[type(kind)]} "

    def replacements(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """Yield begin, end and new text of every mutant of one node."""
        match node:
            case ast.Compare() | ast.BoolOp() | ast.BinOp():
                yield from self.operators(node)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                begin, end = self.span(node)[0], self.span(node.operand)[0]
                if "(" not in self.text(begin, end):
                    yield begin, end, " "
            case ast.Constant(value=bool(value)):
                yield *self.span(node), str(not value)
            case ast.Constant(value=int(value)):
                yield *self.span(node), str(value + 1)
            case ast.Constant(value=float(value)):
                yield *self.span(node), str(2 * value)
            case ast.If() | ast.IfExp() | ast.While():
                begin, end = self.span(node.test)
                yield begin, end, f"(not ({self.text(begin, end)}))"
            case ast.Expr(value=ast.Call()):
                yield *self.span(node), "None"


def places(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a syntax tree, without wording, annotations, decorators and docstrings."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.arg) or is_text:
        return
    yield node
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in ("annotation", "returns", "decorator_list"):
                yield from places(child)


def mutants(name: str, text: str) -> Iterator[dict]:
    """Yield all mutants of a file: the line, what stands there and what replaces it."""
    source = Source(text)
    for node in places(ast.parse(text)):
        for begin, end, new in source.replacements(node):
            yield {
                "file": name, "line": source.content[:begin].count(b"\n") + 1, "begin": begin, "end": end,
                "old": source.text(begin, end), "new": new,
            }  # fmt: skip


def tests_of(name: str) -> list[str]:
    """Return the test files of a source file, as its path below src/maxsep."""
    for prefix, tests in TESTS.items():
        if name.startswith(prefix):
            return [f"tests/{test}" for test in tests]
    path = Path("tests") / Path(name).parent / f"test_{Path(name).stem}.py"
    if path.exists():
        return [str(path)]
    return [str(path.parent / test) for test in ("test_heads.py", "test_contract.py")]


def run_tests(tests: list[str], limit: int) -> tuple[str, float]:
    """Run tests in a fork, which has torch already; return killed, survived or limit, and the seconds."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1), os.dup2(quiet, 2)
        import pytest

        code = 3
        try:
            options = ["-x", "-q", "-m", "not nightly and not slow", "-p", "no:cacheprovider", "-p", "no:randomly"]
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins that the parent has imported
            code = int(pytest.main([*tests, *options, f"--hypothesis-seed={0}"]))
        finally:
            os._exit(code)
    while time.monotonic() < began + 10 * limit:  # a test that waits uses no processor
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            outcome = "limit" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "killed" if code else "survived"
            return outcome, time.monotonic() - began
        time.sleep(0.1)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "limit", time.monotonic() - began


def try_mutant(mutant: dict, limit: int) -> None:
    """Write a mutant, run its tests, restore the file, and add outcome and seconds."""
    path = Path("src/maxsep") / mutant["file"]
    before = path.read_bytes()
    after = before[: mutant["begin"]] + mutant["new"].encode() + before[mutant["end"] :]
    try:
        path.write_bytes(after)
        compile(after, str(path), "exec")
        mutant["outcome"], mutant["seconds"] = run_tests(tests_of(mutant["file"]), limit)
    finally:
        path.write_bytes(before)
    mutant["seconds"] = round(mutant["seconds"], 1)
    mutant["code"] = before.decode().splitlines()[mutant["line"] - 1].strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=60, help="seconds of processor time of one mutant")
    parser.add_argument("--budget", type=float, default=3600, help="seconds of this call; the next one goes on")
    parser.add_argument("--again", action="store_true", help="try the survivors again")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    began, source = time.monotonic(), Path("src/maxsep")
    files = [path for room in ROOMS for path in (sorted((source / room).rglob("*.py")) or [source / room])]
    names = [name for path in files if (name := path.relative_to(source).as_posix()) not in WITHOUT]
    everything = [mutant for name in names for mutant in mutants(name, (source / name).read_text())]
    drawn = random.Random(arguments.seed).sample(everything, arguments.number)
    drawn = [mutant for mutant in drawn if mutant["old"] != mutant["new"]]  # twice 0.0 is no change
    old = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"mutants": []}
    key = "file", "begin", "old", "new"
    known = {tuple(m[k] for k in key): m for m in old["mutants"]}
    drawn = [known.get(tuple(m[k] for k in key), m) for m in drawn]
    # as tests/conftest.py sets them before it imports torch
    os.environ |= {"TRITON_INTERPRET": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "CI": "true"}
    for package in ("lightning_fabric", "pytest", "scipy", "sklearn.covariance", "torch"):
        importlib.import_module(package)  # once, for all forks

    about = {"command": " ".join(["python", *sys.argv]), "seed": arguments.seed, "places": len(everything)}
    about |= {"commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()}
    about |= {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version(), "left_out": WITHOUT}
    about |= {"limit": f"{arguments.limit} seconds of processor time", "tests": "without those marked slow or nightly"}
    about["unchanged"] = old.get("about", {}).get("unchanged", {})
    for mutant in drawn:
        if time.monotonic() > began + arguments.budget:
            break
        tests = tests_of(mutant["file"])
        if " ".join(tests) not in about["unchanged"]:  # without a mutant they must pass
            outcome = run_tests(tests, 10 * arguments.limit)
            if outcome[0] != "survived":
                sys.exit(f"without any mutant {' '.join(tests)} do not pass")
            about["unchanged"][" ".join(tests)] = outcome
        if "outcome" not in mutant or (arguments.again and mutant["outcome"] != "killed"):
            try_mutant(mutant, arguments.limit)
            print(mutant["outcome"], mutant["seconds"], mutant["file"], mutant["line"], mutant["new"], flush=True)
            if mutant["outcome"] != "killed":
                mutant.setdefault("why", "")
        tried = [m for m in drawn if "outcome" in m]
        counts = {kind: sum(m["outcome"] == kind for m in tried) for kind in ("killed", "survived", "limit")}
        arguments.out.write_text(json.dumps({"about": about, "counts": counts, "mutants": tried}, indent=1) + "\n")


if __name__ == "__main__":
    main()
