"""Build the documentation site from README.md, docs/ and the docstrings.

python docs/build_site.py                    # writes build/site; open build/site/index.html
python docs/build_site.py --no-notebooks     # does not run the notebooks; their pages have no output

Pages keep the links that work on the repository host. This script copies them to build/pages, points their links at the
copies, runs the notebooks, writes one page of API reference per module and builds the site with warnings as errors.
Links to files that are no pages lead to copies of the files. Folders have no page: their links lead to
https://github.com/$GITHUB_REPOSITORY if that variable is set, and become plain text otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
REPOSITORY = os.environ.get("GITHUB_REPOSITORY", "")
NAVIGATION = {
    "Home": ["README.md"],
    "Tutorial": ["docs/guide/tutorial.md", "docs/notebooks/*.ipynb"],
    "How to": ["docs/howto/*.md"],
    "Guide": ["docs/guide/library.md", "docs/guide/many_classes.md", "docs/guide/command_line.md", "docs/guide/*.md"],
    "Concepts": ["docs/guide/concepts.md", "docs/theory.md"],
    "Results": [
        "docs/results.md", "docs/speed.md", "docs/scale.md",
        "docs/reproducing.md", "docs/plan.md", "results/report/report.md",
    ],
    "API": [],
    "Project": [
        "docs/guide/versions.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "CODE_OF_CONDUCT.md",
        "docs/*.md",
    ],
}  # fmt: skip
"""Sections and their pages; a pattern adds the pages that no section names."""
API = {
    "maxsep": "", "maxsep.heads": "", "maxsep.surgery": "", "maxsep.losses": "", "maxsep.detect": "",
    "maxsep.analysis": "", "maxsep.sklearn": "", "maxsep.lab.spec": "RunSpec Execution", "maxsep.lab.grid": "run",
    "maxsep.lab.engine": "",
}  # fmt: skip
"""Modules of the reference and their members; by default those of `__all__`."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def sections() -> dict[str, list[str]]:
    """Return the files of every section; each file of docs/ is in one of them."""
    named = {page for pages in NAVIGATION.values() for page in pages if "*" not in page}
    found: dict[str, list[str]] = {}
    for title, pages in NAVIGATION.items():
        found[title] = []
        for pattern in pages:
            files = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob(pattern))]
            found[title] += files if "*" not in pattern else [name for name in files if name not in named]
            assert files or "*" in pattern, f"{pattern} does not exist"
    return found


def site_path(name: str) -> str:
    """Return where the site has a file of the repository."""
    places = {"README.md": "index.md", "CHANGELOG.md": "changes.md", "results/report/report.md": "report/index.md"}
    place = places.get(name, name if "/" in name else name.lower())
    return re.sub(r"\.ipynb$", ".md", re.sub("^docs/|^results/(?=report/)", "", place))


def point_links_at_site(text: str, name: str, pages: set[str]) -> str:
    """Rewrite the links of a page: to pages of the site, to copies of files, or to the repository host."""
    folder = (PAGES / site_path(name)).parent

    def replace(match: re.Match[str]) -> str:
        image, label, link = match.groups()
        path, mark, anchor = link.partition("#")
        target = os.path.relpath((ROOT / name).parent / path, ROOT)
        if not path or urlsplit(link).scheme or not (ROOT / target).exists():  # pictures of notebooks exist here alone
            return match[0]
        if (ROOT / target).is_dir():
            return f"[{label}](https://github.com/{REPOSITORY}/tree/main/{target})" if REPOSITORY else label
        copy = PAGES / site_path(target)
        if target not in pages:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / target, copy)
        return f"{image}[{label}]({os.path.relpath(copy, folder)}{mark}{anchor})"

    parts = CODE.split(re.sub(r"<!-- /?table.*?-->\n", "", text))
    return "".join(part if i % 2 else LINK.sub(replace, part) for i, part in enumerate(parts))


def notebook_page(path: Path, is_run: bool) -> str:
    """Run a notebook and return it as Markdown; its pictures are written beside the page."""
    import nbformat
    from nbconvert import MarkdownExporter
    from nbconvert.filters import strip_ansi
    from nbconvert.preprocessors import ExecutePreprocessor

    notebook = nbformat.read(path, as_version=4)
    if is_run:
        runner = ExecutePreprocessor(timeout=900, coalesce_streams=True)
        runner.preprocess(notebook, {"metadata": {"path": str(path.parent)}})
    text, resources = MarkdownExporter().from_notebook_node(notebook, {"unique_key": path.stem})
    for name, data in resources["outputs"].items():
        (PAGES / "notebooks" / name).write_bytes(data)
    return str(strip_ansi(text)).replace("![png](", "![Output of the code above](")


def api_paths(module: str, members: str) -> list[str]:
    """Return where the public names of a module are defined: a function may have the name of its file."""
    names = members.split() or importlib.import_module(module).__all__
    objects = {name: getattr(importlib.import_module(module), name) for name in names}
    return [f"{getattr(value, '__module__', module)}.{name}" for name, value in objects.items()]


def api_page(module: str, members: str) -> str:
    """Return a page that mkdocstrings fills with the docstrings of a module and its public names."""
    text = f"# {module}\n\n::: {module}\n    options: {{members: false, show_root_toc_entry: false}}\n"
    options = "{show_root_heading: true, show_root_full_path: false}"
    return text + "".join(f"\n::: {path}\n    options: {options}\n" for path in api_paths(module, members))


def write_pages(is_run: bool) -> None:
    """Fill build/pages and write the configuration with the navigation."""
    shutil.rmtree(PAGES, ignore_errors=True)
    (PAGES / "notebooks").mkdir(parents=True)
    (PAGES / "api").mkdir()
    found = sections()
    pages = {name for names in found.values() for name in names}
    for name in sorted(pages):
        text = notebook_page(ROOT / name, is_run) if name.endswith(".ipynb") else (ROOT / name).read_text()
        page = PAGES / site_path(name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(point_links_at_site(text, name, pages))
    navigation = {title: [site_path(name) for name in names] for title, names in found.items()}
    for module, members in API.items():
        (PAGES / "api" / f"{module}.md").write_text(api_page(module, members))
        navigation["API"].append(f"api/{module}.md")
    shutil.copytree(ROOT / "docs" / "style", PAGES / "style")
    shutil.copytree(ROOT / "results" / "report", PAGES / "report", dirs_exist_ok=True)
    (PAGES / "report" / "report.md").unlink()  # it is the folder's index
    nav = (f"  {{ {json.dumps(title)} = {json.dumps(pages)} }},\n" for title, pages in navigation.items() if pages)
    repository = f'repo_url = "https://github.com/{REPOSITORY}"\n' if REPOSITORY else ""
    settings = (ROOT / "docs" / "zensical.toml").read_text()
    settings = settings.replace("nav = []\n", f"nav = [\n{''.join(nav)}]\n{repository}")
    (PAGES.parent / "zensical.toml").write_text(settings)


class Links(HTMLParser):
    """The ids and the links of one HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = {""}
        self.links: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the attributes name."""
        for name, value in attrs:
            if name in ("id", "name"):
                self.ids.add(value or "")
            elif name in ("href", "src") and tag != "base":
                self.links.add(value or "")


def broken_links() -> Iterator[str]:
    """Yield every link between files of the site that leads to no file or to no place in it."""
    pages = {path: Links(path) for path in SITE.rglob("*.html") if path.name != "404.html"}
    for page, content in pages.items():
        for link in sorted(content.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (target in pages and unquote(parts.fragment) not in pages[target].ids):
                yield f"{page.relative_to(SITE)}: {link}"


def undocumented() -> Iterator[str]:
    """Yield every public name that has no place in the reference."""
    for module, members in API.items():
        ids = Links(SITE / "api" / f"{module}.html").ids
        yield from (path for path in api_paths(module, members) if path not in ids)


def main() -> None:
    """Write the pages, build the site and check its links."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--no-notebooks", action="store_true", help="do not run the notebooks")
    write_pages(is_run=not parser.parse_args().no_notebooks)
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", "build/zensical.toml"]
    subprocess.run(command, cwd=ROOT, check=True)
    broken = list(broken_links())
    if broken:
        sys.exit("links that lead nowhere:\n" + "\n".join(broken))
    if missing := list(undocumented()):
        sys.exit("names without a place in the reference:\n" + "\n".join(missing))


if __name__ == "__main__":
    main()
