"""Relative links in the documentation and the notebooks lead to files and headings that exist."""

from __future__ import annotations

import json
import os
import re
from typing import Iterator, List, Tuple

import pytest

from tests.helpers import ROOT


def pages() -> List[str]:
    """Return the paths of all pages, relative to the project."""
    found = [name for name in os.listdir(ROOT) if name.endswith(".md")]
    for top in ("docs", "notebooks", "benchmarks", "examples"):
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            paths = (os.path.relpath(os.path.join(folder, name), ROOT) for name in names)
            found += [path for path in paths if path.endswith((".md", ".ipynb")) and ".ipynb_checkpoints" not in path]
    return sorted(found)


def markdown_of(path: str) -> str:
    """Return the text of a page or of the text cells of a notebook, without code."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    if path.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def links_of(path: str) -> Iterator[Tuple[str, str]]:
    """Yield (path relative to the project, anchor) of the links of a page to files of the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", markdown_of(path))):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path, anchor


def anchors_of(path: str) -> List[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.*?)\s*$", markdown_of(path), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("path", pages())
def test_links_lead_to_files_and_headings(path):
    missing = [
        f"{target}#{anchor}" if anchor else target
        for target, anchor in links_of(path)
        if not os.path.exists(os.path.join(ROOT, target)) or (anchor and anchor not in anchors_of(target))
    ]
    assert not missing


def test_there_are_links_to_check():
    found = {path: list(links_of(path)) for path in pages()}
    assert len(found["README.md"]) >= 20 and any(anchor for links in found.values() for _, anchor in links)
    assert sum(bool(links) for path, links in found.items() if path.endswith(".ipynb")) >= 3
