"""The code blocks of README and docs/, with the comment that stands before each."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parents[2]
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"(?:^<!-- (?P<comment>[^\n]*?) -->\n)?^ *```(?P<language>[^\n]*)\n(?P<code>.*?)^ *```$", re.M | re.S
)


def packaging_module(name: str) -> ModuleType:
    """A script of packaging/ as a module; that folder is no package, as PyPI has one of its name."""
    spec = importlib.util.spec_from_file_location(f"packaging_{name}", PROJECT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    comment: str

    @property
    def why_not_run(self) -> str | None:
        """The reason for which a block is not run, None where it is."""
        return self.comment.removeprefix("not run: ") if self.comment.startswith("not run: ") else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(path: Path) -> list[Block]:
    text, page = path.read_text(), str(path.relative_to(PROJECT))
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["code"],
            found["comment"] or "",
        )
        for found in BLOCK.finditer(text)
    ]
