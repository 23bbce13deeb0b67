"""Imports only point down the layers of the house; anything else is a cycle in the making."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tidelog"

FOUNDATION = {"errors", "clock", "config", "metrics", "slices"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "slices": set(),
    "config": {"errors"},
    "metrics": {"errors", "clock"},
    "protocol": FOUNDATION,
    "records": {"errors"},
    "storage": FOUNDATION | {"records"},
    "metadata": FOUNDATION,
    "network": FOUNDATION | {"protocol"},
    "cluster": FOUNDATION | {"protocol", "records", "storage", "metadata"},
    "controller": FOUNDATION | {"protocol", "records", "storage", "metadata", "cluster"},
    "security": FOUNDATION | {"protocol", "metadata"},
    "clients": FOUNDATION | {"protocol", "records"},
}
ALLOWED["coordinator"] = FOUNDATION | {"protocol", "records", "storage", "metadata", "cluster"}
ALLOWED["server"] = set(ALLOWED)
ALLOWED["testing"] = set(ALLOWED)
ALLOWED["spark"] = FOUNDATION | {"protocol", "records", "clients"}
ALLOWED["cli"] = set(ALLOWED) | {""}


def imported_layers(tree: ast.AST) -> set[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            raise AssertionError("relative imports hide the layer that is imported")
    return {name.split(".")[1] for name in names if name.startswith("tidelog.") and "." in name}


def violations(layer: str, source: str) -> set[str]:
    known = {path.stem for path in SOURCE.iterdir()}
    return (
        {target for target in imported_layers(ast.parse(source)) if target in known}
        - ALLOWED[layer]
        - {layer}
    )


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_imports_only_from_the_layers_below(path: Path) -> None:
    layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if layer in ("__init__", "__main__"):
        return
    assert not violations(layer, path.read_text())


def test_an_import_upwards_is_found() -> None:
    assert violations("records", "from tidelog.storage.log import Log") == {"storage"}
    assert violations("storage", "import tidelog.protocol.api") == {"protocol"}
