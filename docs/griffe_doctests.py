"""Show the examples of docstrings as code: mkdocstrings reads docstrings as Markdown, where `>>>` is a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:^\1\S.*\n?)*", re.MULTILINE)


class FenceDoctests(griffe.Extension):
    """Put the examples of every docstring into fences."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a function, class, module or attribute."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(self._fence, obj.docstring.value)

    @staticmethod
    def _fence(match: re.Match[str]) -> str:
        return f"{match[1]}```pycon\n{match[0].rstrip()}\n{match[1]}```\n"
