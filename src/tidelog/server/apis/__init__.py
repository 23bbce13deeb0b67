"""The APIs that this broker answers, one module per family.

Each module opens with what it serves and ends with its `APIS`; the table of served versions is made
from those and from nowhere else.
"""

from __future__ import annotations

from importlib import import_module

from tidelog.server.apis.api import Api

FAMILIES = (
    "produce",
    "fetch",
    "offsets",
    "metadata",
    "api_versions",
    "topics",
    "delete_records",
    "configs",
    "cluster",
    "log_dirs",
    "replicas",
    "producers",
    "transactions",
    "groups",
    "group_offsets",
    "consumer_groups",
)


def served_apis() -> dict[int, Api]:
    """Every served API by its key."""
    table: dict[int, Api] = {}
    for family in FAMILIES:
        apis: tuple[Api, ...] = import_module(f"tidelog.server.apis.{family}").APIS
        for api in apis:
            table[api.key] = api
    return table
