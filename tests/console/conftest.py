"""A broker with its console, and an HTTP client for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.console.site import Site
from tidelog.testing import Broker


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    """A broker with a console, topics and a group; tests that change it use names of their own."""
    with Broker({"console.listener": "127.0.0.1:0"}) as broker, Site(broker) as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[httpx.Client]:
    """A program that is no browser: it sends no cookies and needs no token."""
    with httpx.Client(base_url=site.url, timeout=30) as client:
        yield client
