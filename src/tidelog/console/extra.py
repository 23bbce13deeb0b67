"""The packages of the extra `console`: without them one line says how to get them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

PACKAGES: Final = ("starlette", "uvicorn", "jinja2", "msgspec")


def missing_packages() -> str:
    """What is missing and how to install it, in one line; "" if nothing is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if not missing:
        return ""
    return f"the console needs {', '.join(missing)}: pip install 'tidelog[console]'"
