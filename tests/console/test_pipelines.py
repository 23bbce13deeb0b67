"""Pipelines on the console: status files, micro-batches, tables, alerts and the report, without Spark."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.piped import HOSTILE, piped_site
from tests.console.site import Site
from tests.support.wait import eventually
from tidelog.console.pipeline_alerts import AlertDigest, AlertDigests


@pytest.fixture(scope="module")
def piped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with piped_site(tmp_path_factory.mktemp("pipelines")) as site:
        yield site


def test_running_and_failed_pipelines(piped: Site) -> None:
    found = {each["pipeline"]: each for each in piped.get("/pipelines")["pipelines"]}
    earnings = found["earnings"]
    assert (earnings["state"], earnings["rows"], earnings["lag"]) == ("running", 1200, 5)
    assert earnings["rows_per_second"] == 300.0
    assert found["rings"]["state"] == "failed"
    page = piped.page("/pipelines")
    assert "300/s" in page
    assert HOSTILE not in page
    assert "it broke: &lt;script&gt;" in page


def test_the_last_micro_batches(piped: Site) -> None:
    batches = piped.get("/pipelines/0/batches")["batches"]
    assert [batch["batch"] for batch in batches] == [2, 1, 0]
    page = piped.page("/pipelines/0/runs/earnings")
    assert "Last micro-batches" in page
    assert "500 ms" in page
    failed = piped.page("/pipelines/0/runs/rings")
    assert "between batches" not in failed
    assert "0.00 ms" not in failed


def test_tables_with_their_newest_rows(piped: Site) -> None:
    tables = {table["name"]: table for table in piped.get("/pipelines/0/tables")["tables"]}
    assert (tables["logins"]["rows"], tables["logins"]["version"]) == (2, 1)
    found = piped.get("/pipelines/0/tables/logins")
    at = found["columns"].index("event_id")
    assert [row[at] for row in found["rows"]] == ["new", "old"]
    page = piped.page("/pipelines/0/tables/logins")
    assert HOSTILE not in page
    assert "null" in page
    assert "logins" in piped.page("/pipelines/0/tables")


def test_alerts_with_their_evidence(piped: Site) -> None:
    alerts: list[Any] = piped.get("/pipelines/0/alerts")["alerts"]
    assert [alert["subject"] for alert in alerts] == [HOSTILE, "u1"]
    assert alerts[0]["evidence"] == {"devices": [HOSTILE]}
    page = piped.page("/pipelines/0/alerts")
    assert "device-switching" in page
    assert HOSTILE not in page


def test_the_overview_counts_alerts_and_links_to_the_evidence_of_the_newest(piped: Site) -> None:
    alerts = eventually(
        lambda: found if (found := piped.get("/overview")["alerts"])["count"] else None, "alerts are counted"
    )
    assert alerts["count"] == 2
    assert [alert["subject"] for alert in alerts["newest"]] == [HOSTILE, "u1"]
    page = piped.page()
    assert "Alerts of pipelines" in page
    assert HOSTILE not in page
    link = re.search(r'href="(/clusters/local/pipelines/0/alerts\?alert=a1)"', page)
    assert link is not None
    evidence = piped.http.get(link[1]).text
    assert "<details open>" in evidence
    assert "alert=a0" not in evidence
    one = piped.get("/pipelines/0/alerts", alert="a0")["alerts"]
    assert [alert["alert_id"] for alert in one] == ["a0"]
    assert piped.get("/pipelines/0/alerts", alert="a0' or 1=1")["alerts"] == []


def test_the_overview_does_not_wait_for_a_slow_table() -> None:
    """One read at a time, only after a change, and answers meanwhile."""

    async def main() -> None:
        clock, reads, begun, go_on = 0.0, 0, threading.Event(), threading.Event()
        stamp = ("1",)

        def read(_: str) -> AlertDigest:
            nonlocal reads
            begun.set()
            assert go_on.wait(30)
            reads += 1
            return AlertDigest(reads)

        digests = AlertDigests(read, lambda _: stamp, lambda: clock)
        assert await digests.get(["/data"]) == [None]
        assert await digests.get(["/data"]) == [None]
        assert await asyncio.to_thread(begun.wait, 30)
        go_on.set()
        while await digests.get(["/data"]) != [AlertDigest(1)]:
            await asyncio.sleep(0.01)
        for _ in range(3):
            clock += 60
            assert await digests.get(["/data"]) == [AlertDigest(1)]
            while digests._kept["/data"].task is not None:
                await asyncio.sleep(0.01)
        assert reads == 1
        stamp = ("2",)
        clock += 60
        while await digests.get(["/data"]) != [AlertDigest(2)]:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_report_runs_no_script(piped: Site) -> None:
    answer = piped.http.get("/clusters/local/pipelines/0/report")
    assert answer.status_code == 200
    assert "What the pipelines found" in answer.text
    assert HOSTILE not in answer.text
    policies = answer.headers.get_list("content-security-policy")
    assert len(policies) == 1
    assert "script-src" not in policies[0]
    assert "sandbox" in policies[0]


@pytest.mark.parametrize("path", ["/pipelines/9/tables", "/pipelines/x/tables", "/pipelines/-1/tables"])
def test_only_the_named_folders_are_read(piped: Site, path: str) -> None:
    assert piped.http.get(f"/api/clusters/local{path}").status_code == 404


@pytest.mark.parametrize("table", ["nothing", "..", "..%2f..%2fetc", "%2e%2e%2fx", "logins%2f_delta_log"])
def test_only_tables_of_the_folder_are_read(piped: Site, table: str) -> None:
    assert piped.http.get(f"/api/clusters/local/pipelines/0/tables/{table}").status_code == 404


def test_tables_of_a_store_are_not_shown(piped: Site) -> None:
    answer = piped.http.get("/api/clusters/local/pipelines/1/tables")
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "NOT_LOCAL")


def test_a_console_without_folders_says_how_to_name_them(site: Site) -> None:
    assert "console.pipelines" in site.page("/pipelines")
