"""The APIs that this broker answers, one module per family.

The docstring of a module describes its APIs, and `APIS` at its end lists them. `security_apis` lists the APIs
of modules that are loaded late. The table of served versions comes from these lists alone.
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
    "security_apis",
)


FAMILIES_OF_CLUSTER = ("controller_requests", "broker_requests", "envelope")
"""APIs between the brokers of a cluster."""


def served_apis(*, cluster: bool = False) -> dict[int, Api]:
    """Every served API by its key; a broker of a `cluster` serves the APIs between brokers, too."""
    table: dict[int, Api] = {}
    for family in FAMILIES + FAMILIES_OF_CLUSTER if cluster else FAMILIES:
        apis: tuple[Api, ...] = import_module(f"tidelog.server.apis.{family}").APIS
        for api in apis:
            table[api.key] = api
    return table
