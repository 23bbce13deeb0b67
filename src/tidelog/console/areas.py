"""The areas of the console: the modules with endpoints and pages, one line each, in the order of the menu."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from tidelog.console.api import Endpoint
from tidelog.console.pages import NavItem, Page, TopicTab

MODULES: Final = (
    "pages_palette",
    "api_overview",
    "pages_overview",
    "api_topics",
    "api_topic_changes",
    "pages_topics",
    "api_records",
    "api_analysis",
    "pages_records",
    "api_cluster",
    "api_reassignments",
    "pages_cluster",
    "api_groups",
    "pages_groups",
    "api_transactions",
    "pages_transactions",
    "api_security",
    "pages_security",
    "api_pipelines",
    "pages_pipelines",
)


def endpoints() -> list[Endpoint]:
    """The endpoints of all areas."""
    return [endpoint for module in MODULES for endpoint in getattr(_imported(module), "ENDPOINTS", ())]


def pages() -> list[Page]:
    """The pages of all areas."""
    return [page for module in MODULES for page in getattr(_imported(module), "PAGES", ())]


def nav() -> list[NavItem]:
    """The entries of the menu."""
    return [item for module in MODULES for item in getattr(_imported(module), "NAV", ())]


def topic_tabs() -> list[TopicTab]:
    """The tabs of a topic's page."""
    return [tab for module in MODULES for tab in getattr(_imported(module), "TOPIC_TABS", ())]


def _imported(module: str) -> object:
    return import_module(f"{__package__}.{module}")
