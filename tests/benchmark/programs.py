"""The modules of the benchmark, which are programs beside the package."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCH = Path(__file__).parent.parent.parent / "bench"


@contextmanager
def imported(*names: str) -> Iterator[dict[str, ModuleType]]:
    """Modules of the benchmark by name; they and what they import are forgotten again afterwards."""
    known = set(sys.modules)
    sys.path.insert(0, str(BENCH))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BENCH))
        for name in set(sys.modules) - known:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(BENCH)):
                del sys.modules[name]
