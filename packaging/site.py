"""Hooks of MkDocs: pages that are made from code, and pages that live beside docs/."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import Abort
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import links
import reference

# Pages of the site by the files that they are made of.
ROOT_PAGES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "bench.md": "bench/README.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, make in reference.PAGES.items():
        files.append(File.generated(config, name, content=make()))
    for name, path in ROOT_PAGES.items():
        text = re.sub(r"\]\((\.\./)?docs/", "](", (links.PROJECT / path).read_text())
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to files beside docs/ lead to their pages of the site."""
    for name, path in ROOT_PAGES.items():
        markdown = markdown.replace(f"](../{path}", f"]({name}")
    return markdown


def on_pre_build(config: MkDocsConfig) -> None:
    """MkDocs checks the links of its own pages; README and the others are checked here."""
    made = {*reference.PAGES, *ROOT_PAGES}
    found = [problem for page in links.pages() for problem in links.broken(page, made)]
    if found:
        raise Abort("\n".join(found))
