"""The console of a broker that runs in this process; the console has a process of its own."""

from __future__ import annotations

import re
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.support.wait import eventually, patience
from tidelog.testing import Broker


class Site:
    """The address of the console, and calls of its API as a program makes them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.url = eventually(
            lambda: console_url(broker), "the console answers", timeout=patience(30)
        )
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    @property
    def pid(self) -> int:
        """The process of the console, the newest one if it was started again."""
        return int(re.findall(r"the console answers.* pid=(\d+)", "\n".join(self.broker.log_lines()))[-1])

    def get(self, path: str, **query: Any) -> Any:
        """The answer of an endpoint of the cluster."""
        answer = self.http.get(f"/api/clusters/local{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, path: str = "", **query: Any) -> str:
        answer = self.http.get(f"/clusters/local{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.text


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def console_url(broker: Broker) -> str:
    lines = "\n".join(broker.log_lines())
    found = re.search(r"console.*?(http://[\d.:]+)", lines)
    return found[1] if found else ""
