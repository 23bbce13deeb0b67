"""Links in Markdown: every file, and every heading in it, that a page links to is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parent.parent


def pages() -> list[Path]:
    """Every page that people read: README and the like, and all of docs/."""
    docs = sorted((PROJECT / "docs").rglob("*.md"))
    return [*sorted(PROJECT.glob("*.md")), *docs, PROJECT / "bench" / "README.md"]


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and code hosts make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {anchor(heading) for heading in headings}


def anchor(heading: str) -> str:
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def broken(page: Path, made: set[str] | None = None) -> Iterator[str]:
    """What a page links to in vain. `made` are pages below docs/ that are made when the site is built."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, part = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists():
            docs = PROJECT / "docs"
            if made is None or not file.is_relative_to(docs) or str(file.relative_to(docs)) not in made:
                yield f"{page.relative_to(PROJECT)} links to {target}: there is no such file"
        elif part and file.suffix == ".md" and part not in anchors(file):
            yield f"{page.relative_to(PROJECT)} links to {target}: there is no such heading"
