"""What the documents say of the broker is what it does."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.protocol.api import API
from tidelog.server.apis import served_apis

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_operations_page_names_every_served_api_with_its_versions() -> None:
    text = re.sub(r"\s+", " ", (DOCS / "operations.md").read_text().partition("## APIs and versions")[2])
    for api in served_apis(cluster=True).values():
        versions = str(api.min_version)
        if api.max_version > api.min_version:
            versions += f"-{api.max_version}"
        promised = f"{API[api.key].name} {versions}"
        found = re.search(rf"\b{promised}\b", text) is not None
        assert found, f"docs/operations.md, APIs and versions: write {promised}"
