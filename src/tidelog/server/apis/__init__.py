"""The APIs that this broker answers, one module per family.

The docstring of each module describes its APIs, and its last lines list them in `APIS`. The table of served
versions comes from these lists alone.
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
