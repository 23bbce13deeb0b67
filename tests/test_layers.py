"""Imports only point down the layers of the house; anything else is a cycle in the making."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tidelog"

MOST_LINES = 600
FOUNDATION = {"errors", "clock", "config", "endpoints", "metrics", "partitions", "slices"}
ALLOWED: dict[str, set[str]] = {
    "error_codes": set(),
    "errors": {"error_codes"},
    "clock": set(),
    "slices": set(),
    "endpoints": set(),
    "partitions": set(),
    "config": {"errors"},
    "metrics": {"errors", "clock", "slices"},
    "protocol": FOUNDATION,
    "records": {"errors"},
    "storage": FOUNDATION | {"records"},
    "metadata": FOUNDATION,
    "network": FOUNDATION | {"protocol"},
    "cluster": FOUNDATION | {"protocol", "records", "storage", "metadata"},
    "controller": FOUNDATION | {"protocol", "records", "storage", "metadata", "cluster"},
    "security": FOUNDATION | {"protocol", "metadata"},
    # The consumer of Kafka 0.8 coordinates its group in ZooKeeper, whose client and nodes are in metadata.
    "clients": FOUNDATION | {"protocol", "records", "metadata", "security"},
}
ALLOWED["coordinator"] = FOUNDATION | {"protocol", "records", "storage", "metadata", "cluster"}
# The console reads the state files of pipelines; it knows the broker only as `console.local_broker`.
# Of spark the console imports only light modules, and only when a page needs them.
ALLOWED["console"] = FOUNDATION | {"protocol", "records", "clients", "security", "spark"}
ALLOWED["server"] = set(ALLOWED)
ALLOWED["testing"] = set(ALLOWED) | {"spark"}
ALLOWED["simulation"] = set(ALLOWED)
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


KNOWN = {path.stem for path in SOURCE.iterdir()}


def violations(layer: str, source: str) -> set[str]:
    return (imported_layers(ast.parse(source)) & KNOWN) - ALLOWED[layer] - {layer}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """The text of each module. One test reads them all: a test for each would cost more than its check."""
    return {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}


def test_a_module_fits_into_one_reading(sources: dict[str, str]) -> None:
    lines = {name: len(source.splitlines()) for name, source in sources.items()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_a_module_imports_only_from_the_layers_below(sources: dict[str, str]) -> None:
    found: dict[str, object] = {}
    for name, source in sources.items():
        layer = Path(name).parts[0].removesuffix(".py")
        if layer in ("__init__", "__main__"):
            continue
        try:
            found[name] = violations(layer, source)
        except AssertionError as error:
            found[name] = str(error)
    assert len(found) > 500, "the modules are there"
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_an_import_upwards_is_found() -> None:
    assert violations("records", "from tidelog.storage.log import Log") == {"storage"}
    assert violations("storage", "import tidelog.protocol.api") == {"protocol"}


def private_imports(package: str, source: str) -> set[str]:
    """Modules and names with an underscore that a module of `package` imports from another package."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            private = next((at for at, part in enumerate(parts) if part.startswith("_")), None)
            if parts[0] != "tidelog" or private is None or parts[private].startswith("__"):
                continue
            owner = ".".join(parts[:private])
            if owner != package and owner.rpartition(".")[0] != package:
                found.add(name)
    return found


def test_no_module_imports_a_private_name_of_another_package() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in SOURCE.rglob("*.py")
        if (
            names := private_imports(
                ".".join(("tidelog", *path.relative_to(SOURCE).parts[:-1])), path.read_text()
            )
        )
    }
    assert found == {}


def test_a_private_import_is_found() -> None:
    private = "from tidelog.records._pure import HEADER"
    assert private_imports("tidelog.storage", private) == {"tidelog.records._pure.HEADER"}
    assert private_imports("tidelog.records", private) == set()
    assert private_imports("tidelog.storage.cleaner", "import tidelog.storage._x") == {"tidelog.storage._x"}
    name = "from tidelog.storage.log import _name"
    assert private_imports("tidelog.cluster", name) == {"tidelog.storage.log._name"}
    assert private_imports("tidelog.storage", name) == set()
    assert private_imports("tidelog.cli", "from tidelog import __version__") == set()
