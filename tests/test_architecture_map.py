"""The map of docs/architecture.md names files that exist, and what they define."""

from __future__ import annotations

import re
from pathlib import Path

PROJECT = Path(__file__).parent.parent
SOURCE = PROJECT / "src" / "tidelog"
MAP = (PROJECT / "docs" / "architecture.md").read_text().partition("## The map")[2].partition("\n## ")[0]


def test_every_file_of_the_map_exists() -> None:
    files = re.findall(r"`([\w/]+\.(?:py|pxi))`", MAP)
    assert len(files) > 50
    assert [file for file in files if not (SOURCE / file).is_file()] == []


def test_every_name_of_the_map_is_defined_in_its_file() -> None:
    names = re.findall(r"`(\w+)` in `([\w/]+\.py)`", MAP)
    assert len(names) > 30
    for name, file in names:
        assert re.search(rf"^(?:class|def) {name}\b", (SOURCE / file).read_text(), re.MULTILINE), (name, file)


def test_every_folder_is_on_the_map() -> None:
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"config", "metrics"}
    assert folders == set(re.findall(r"^\| `(\w+)` \|", MAP, re.MULTILINE))
