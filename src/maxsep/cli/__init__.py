"""The command line: thin verbs that parse, call the lab and print."""

from maxsep.cli.main import main

__all__ = ["main"]
