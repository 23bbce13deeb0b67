"""The records of a topic through the API and the pages: reading, filters, changes, and hostile records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from tests.console.site import Site
from tests.support.wait import eventually
from tidelog import Admin, Producer
from tidelog.cli.main import main
from tidelog.testing import Broker

EVIL = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>\x1b]0;x\x07\u202e</pre>"


@pytest.fixture(scope="module")
def topic(site: Site) -> str:
    site.broker.create_topic("read-me", 2)
    for number in range(30):
        site.broker.produce(
            "read-me", f'{{"n": {number}}}', key=f"k{number}", headers=[("h", b"v")],
            partition=number % 2, timestamp_ms=1_700_000_000_000 + number * 60_000,
        )  # fmt: skip
    return "read-me"


def refused(client: httpx.Client, path: str, **query: str) -> str:
    answer = client.get(f"/api/clusters/local/topics/{path}", params=query)
    assert answer.status_code in (400, 404), answer.text
    return str(answer.json()["error"]["message"])


def test_records_are_read_page_by_page(site: Site, topic: str) -> None:
    first = site.get(f"/topics/{topic}/records", count=20)
    assert [json.loads(record["value"]["text"])["n"] for record in first["records"]] == list(range(29, 9, -1))
    second = site.get(f"/topics/{topic}/records", count=20, cursor=first["older"])
    assert [record["key"]["text"] for record in second["records"]] == [f"k{n}" for n in range(9, -1, -1)]
    assert second["older"] is None
    again = site.get(f"/topics/{topic}/records", count=20, cursor=second["newer"])
    assert again["records"] == first["records"]
    page = site.page(f"/topics/{topic}/messages", count=20)
    assert page.count('<details class="record') == 20
    assert first["older"] in page


def test_start_points_partitions_and_filters(site: Site, topic: str) -> None:
    found = site.get(f"/topics/{topic}/records", start="time", at="2023-11-14T22:23:20Z", count=3)
    assert [record["timestamp_ms"] for record in found["records"]] == [
        1_700_000_000_000 + n * 60_000 for n in (10, 11, 12)
    ]
    found = site.get(f"/topics/{topic}/records", start="offset", at="14", partitions="0-1")
    assert [(record["partition"], record["offset"]) for record in found["records"]] == [(0, 14), (1, 14)]
    found = site.get(f"/topics/{topic}/records", filter="record.value.n % 10 == 0", text="K", partitions="0")
    assert [record["key"]["text"] for record in found["records"]] == ["k20", "k10", "k0"]
    assert found["is_complete"]
    page = site.page(f"/topics/{topic}/messages", filter="record.value.missing")
    assert "could not be evaluated for 30 records" in page


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"filter": "x" * 4001}, "length"),
        ({"filter": "(" * 300}, "nested deeper than 100"),
        ({"filter": "record.nothing"}, "record.nothing"),
        ({"text": "x" * 1001}, "length"),
        ({"cursor": "../../etc"}, "cursor"),
        ({"partitions": "0,a"}, "expected numbers"),
        ({"partitions": "0-99999999"}, "expected numbers"),
        ({"partitions": "7"}, "partition 7"),
        ({"start": "offset", "at": "-1"}, "expected a number from 0 on"),
        ({"start": "time", "at": "soon"}, "expected milliseconds"),
        ({"value": "xml"}, "'xml' is unknown"),
        ({"value": "kafka"}, "not an internal topic"),
        ({"count": "501"}, "count"),
    ],
)
def test_a_wrong_question_is_refused_by_api_and_page(
    client: httpx.Client, topic: str, query: dict[str, str], reason: str
) -> None:
    assert reason in refused(client, f"{topic}/records", **query)
    page = client.get(f"/clusters/local/topics/{topic}/messages", params=query)
    assert page.status_code in (400, 404)


def test_one_record_has_a_page_of_its_own(site: Site, client: httpx.Client, topic: str) -> None:
    found = site.get(f"/topics/{topic}/records/1/3", value="hex")
    assert (found["key"]["text"], found["value"]["text"][:5], found["producer_epoch"]) == ("k7", "7b 22", 0)
    page = site.page(f"/topics/{topic}/messages/1/3")
    assert "&#34;n&#34;: 7" in page
    for path in (
        f"{topic}/records/1/999",
        f"{topic}/records/9/0",
        "none/records/0/0",
        f"{topic}/records/x/0",
    ):
        assert refused(client, path).endswith((".", "exist", "UNKNOWN_TOPIC_OR_PARTITION"))


def test_a_record_leads_to_the_records_around_it(site: Site, topic: str) -> None:
    page = site.page(f"/topics/{topic}/messages/1/3")
    assert re.findall(r'rel="(\w+)" href="[^"]*/messages/(\d)/(\d+)"', page) == [
        ("prev", "1", "2"),
        ("next", "1", "4"),
    ]
    assert 'rel="prev"' not in site.page(f"/topics/{topic}/messages/1/0")
    assert 'rel="next"' not in site.page(f"/topics/{topic}/messages/1/14")


def test_a_form_imports_a_file_of_four_megabytes(site: Site) -> None:
    """Most bytes of this one are sent as three."""
    site.broker.create_topic("large-file", 1)
    line = json.dumps({"value": "é" * 400}, ensure_ascii=False) + "\n"
    lines = 4_000_000 // len(line.encode())
    with httpx.Client(base_url=site.url, timeout=60) as browser:
        token = re.search(r'"X-CSRF-Token": "(\w+)"', browser.get("/clusters/local").text)
        assert token is not None
        answer = browser.post(
            "/api/clusters/local/topics/large-file/records/import",
            data={"format": "jsonl", "data": line * lines, "csrf": token[1]},
            headers={"sec-fetch-site": "same-origin"},
        )
    assert answer.status_code == 204, answer.text
    assert f"{lines:,} records are produced." in answer.headers["hx-trigger"]


def test_the_timeline_and_decoders_are_listed(site: Site, topic: str) -> None:
    found = site.get(f"/topics/{topic}/timeline", buckets=30)
    assert sum(bucket["count"] for bucket in found["buckets"]) == 30
    names = {decoder["name"] for decoder in site.get(f"/topics/{topic}/decoders")["values"]}
    assert {"auto", "text", "json", "msgpack", "hex", "protobuf-raw", "avro-container"} <= names
    picture = site.page(f"/topics/{topic}/messages/timeline")
    assert picture.count("<rect") >= 2
    assert "start=time&amp;at=1700000" in picture


def test_a_shared_search_is_not_older_than_its_topic(site: Site) -> None:
    def found() -> list[str]:
        answer = site.get("/topics/searched/records", text="needle", start="oldest")
        return [record["value"]["text"] for record in answer["records"]]

    for life in ("first", "second"):
        site.broker.create_topic("searched", 1)
        site.broker.produce("searched", f"needle {life}")
        assert found() == found() == [f"needle {life}"]
        site.broker.produce("searched", "needle again")
        assert found() == [f"needle {life}", "needle again"]
        with Admin(bootstrap_servers=site.broker.bootstrap_servers) as admin:
            admin.delete_topics(["searched"])


def test_a_filter_is_tried_on_one_record(site: Site, client: httpx.Client, topic: str) -> None:
    def verdict(**body: object) -> dict[str, object]:
        answer = client.post(f"/api/clusters/local/topics/{topic}/records/test-filter", json=body)
        return dict(answer.json())

    assert verdict(filter="record.value.n == 29")["matches"] is True
    assert verdict(filter="record.value.n == 29", partition=0, offset=0)["matches"] is False
    assert verdict(filter="record.value.x == 1")["error"] == "no such key: 'x' (character 14)"
    assert "error" in verdict(filter="1 +")
    assert "The newest record matches" in site.page(f"/topics/{topic}/messages/dry-run", filter="true")
    assert "character 4" in site.page(f"/topics/{topic}/messages/dry-run", filter="1 +")


def test_records_are_produced_imported_and_replayed(site: Site, client: httpx.Client) -> None:
    site.broker.create_topic("write-me", 1)
    path = "/api/clusters/local/topics/write-me/records"
    made = client.post(path, json={"key": "a", "value": "ff00", "value_encoding": "hex", "headers": "h: v"})
    assert made.json() == {"topic": "write-me", "partition": 0, "offset": 0}
    assert client.post(path, json={"is_tombstone": True}).json()["offset"] == 1
    data = '{"key": "b", "value": {"x": 1}}\n{"value": "t"}'
    assert client.post(f"{path}/import", json={"format": "jsonl", "data": data}).json()["count"] == 2
    foreign = client.post(f"{path}/import", json={"format": "parquet", "data": "é"})
    assert foreign.status_code == 400
    assert "not base64" in foreign.text
    wrong = client.post(f"{path}/import", json={"format": "csv", "data": "a,b\n1,2"})
    assert wrong.json()["error"]["message"].startswith("Record 1: a, b is unknown")
    assert client.post(f"{path}/0/2/replay", json={}).json()["offset"] == 4
    assert client.post(f"{path}/0/2/replay", json={"target": "nowhere"}).status_code == 404
    assert client.post("/api/clusters/local/topics/nowhere/records", json={"value": "a"}).status_code == 404
    assert client.post(path, json={"value": "zz", "value_encoding": "hex"}).status_code == 400
    records = site.broker.records("write-me")
    assert [(record.key, record.value) for record in records] == [
        (b"a", b"\xff\x00"), (None, None), (b"b", b'{"x": 1}'), (None, b"t"), (b"b", b'{"x": 1}'),
    ]  # fmt: skip
    assert list(records[0].headers) == [("h", b"v")]


def test_a_browser_without_the_token_changes_nothing(client: httpx.Client, topic: str) -> None:
    path = f"/api/clusters/local/topics/{topic}"
    for call in (
        f"{path}/records",
        f"{path}/records/import",
        f"{path}/records/0/0/replay",
        f"{path}/analysis",
    ):
        answer = client.post(call, data={"value": "x"}, headers={"origin": "http://evil.example"})
        assert answer.status_code == 403


def test_an_export_streams_the_search(client: httpx.Client, topic: str) -> None:
    page = f"/clusters/local/topics/{topic}/messages/export"
    answer = client.get(page, params={"format": "csv", "start": "offset", "at": "10", "partitions": "1"})
    assert answer.headers["content-disposition"] == f'attachment; filename="{topic}.csv"'
    assert answer.text.count("\r\n") == 6
    answer = client.get(page, params={"filter": "record.value.n < 3", "start": "oldest"})
    assert sorted(json.loads(line)["value"] for line in answer.text.splitlines()) == [
        '{"n": 0}', '{"n": 1}', '{"n": 2}'
    ]  # fmt: skip
    assert client.get(page, params={"format": "parquet"}).content[:4] == b"PAR1"
    assert client.get(page, params={"records": "0"}).status_code == 400
    assert client.get(page, params={"format": "exe"}).status_code == 400


def test_an_export_of_the_newest_has_as_many_as_asked_for(site: Site, client: httpx.Client) -> None:
    """However the records are spread over the partitions, with a filter and without."""
    site.broker.create_topic("uneven", 3)
    with Producer(bootstrap_servers=site.broker.bootstrap_servers) as producer:
        for number in range(40):
            producer.send(
                "uneven",
                b'{"n": %d}' % number,
                partition=0 if number else 1,
                timestamp_ms=1_700_000_000_000 + number,
            )

    def exported(**query: str | int) -> list[int]:
        answer = client.get("/clusters/local/topics/uneven/messages/export", params=query)
        assert answer.status_code == 200, answer.text
        return sorted(json.loads(json.loads(line)["value"])["n"] for line in answer.text.splitlines())

    assert exported(records=30) == list(range(10, 40))
    assert exported(records=100) == list(range(40))
    assert exported(records=3, filter="record.value.n % 10 == 5") == [15, 25, 35]
    older = site.get("/topics/uneven/records", count=20)["older"]
    assert exported(records=5, cursor=older) == list(range(15, 20))
    assert exported(records=1, partitions=1) == [0]


def test_a_wrong_export_is_told_to_programs_and_people(client: httpx.Client, topic: str) -> None:
    page = f"/clusters/local/topics/{topic}/messages/export?format=exe"
    assert client.get(page).json()["error"]["code"] == "BAD_REQUEST"
    shown = client.get(page, headers={"accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert shown.headers["content-type"].startswith("text/html")
    assert "That did not work" in shown.text


def test_new_records_come_as_events(site: Site, client: httpx.Client, topic: str) -> None:
    site.broker.create_topic("live-me", 1)
    with client.stream(
        "GET", "/clusters/local/topics/live-me/messages/live", params={"text": "yes"}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith("event: progress"))
        site.broker.produce("live-me", "no", "yes <b>")
        text = ""
        for line in lines:
            text += line
            if "event: progress" in text.partition("event: records")[2]:
                break
        assert "yes &lt;b&gt;" in text
        assert "no<" not in text
    assert "data-copy" not in text, "what most people never open is not sent"
    opened = re.search(r'hx-get="([^"]+)"', text)
    assert opened
    assert 'data-copy="yes &lt;b&gt;"' in client.get(opened[1]).text
    assert "does not exist" in client.get(opened[1].replace("/1/inside", "/99/inside")).text


def test_hostile_keys_values_headers_and_filters_stay_text(site: Site) -> None:
    site.broker.create_topic("evil", 1)
    site.broker.produce("evil", EVIL, key=EVIL, headers=[(EVIL, EVIL.encode())])
    site.broker.produce("evil", json.dumps({EVIL: EVIL}), key=b"\xff<b>")
    pages = [
        site.page("/topics/evil/messages", text="<", value=value) for value in ("", "text", "json", "hex")
    ]
    pages.append(site.page("/topics/evil/messages/0/0"))
    pages += [site.page(f"/topics/evil/messages/0/{offset}/inside") for offset in (0, 1)]
    pages.append(site.page("/topics/evil/messages/0/1", value="avro-container"))
    pages.append(site.page("/topics/evil/messages/dry-run", filter="record.value == '" + EVIL[:20] + "'"))
    for text in pages:
        assert Tags(text).wrong == []
        assert "\x1b" not in text
        assert "\u202e" not in text
    for path in ("/topics/evil/messages", "/topics/evil/messages/export", "/topics/evil/messages/timeline"):
        for name in ("filter", "text", "cursor", "partitions", "key", "at"):
            answer = site.http.get(f"/clusters/local{path}", params={"start": "time", "at": "0", name: EVIL})
            if "html" in answer.headers["content-type"]:
                assert Tags(answer.text).wrong == []


class Tags(HTMLParser):
    """Finds what a page must not have: images, scripts of its own, handlers, styles, foreign addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if (tag == "img" and given.get("src") != "/static/icon.svg") or (
            tag == "script" and "src" not in given
        ):
            self.wrong.append(f"{tag} {given}")
        for name, value in attrs:
            if name == "style" or (name.startswith("on") and name != "on"):
                self.wrong.append(f"{tag} {name}={value}")
            if name in ("href", "src", "action") and not (value or "").startswith(("/", "#")):
                self.wrong.append(f"{tag} {name}={value}")


def test_a_topic_is_analysed_in_the_background(site: Site, client: httpx.Client, topic: str) -> None:
    path = f"/api/clusters/local/topics/{topic}/analysis"
    assert client.delete(path).status_code == 404
    assert "Reads every record" in site.page(f"/topics/{topic}/analysis")
    assert client.post(path).json()["state"] == "running"

    def done() -> dict[str, object] | None:
        found = site.get(f"/topics/{topic}/analysis")
        return found if found["state"] == "done" else None

    found = eventually(done, "the analysis ends", 30)
    total = found["total"]
    assert isinstance(total, dict)
    assert (total["records"], total["different_keys"], total["null_keys"]) == (30, 30, 0)
    assert total["value_sizes"]["p99"] == 9
    page = site.page(f"/topics/{topic}/analysis")
    assert "Analyse again" in page
    assert client.post("/api/clusters/local/topics/nowhere/analysis").status_code == 404


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A read-only console with masking rules."""
    rules = tmp_path_factory.mktemp("rules") / "rules.json"
    rules.write_text(json.dumps({"masks": [{"topic": "users", "fields": ["email"]}]}))
    settings = {
        "console.listener": "127.0.0.1:0",
        "console.rules.file": str(rules),
        "console.read.only": "true",
    }
    with Broker(settings) as broker, Site(broker) as site:
        broker.create_topic("users")
        broker.produce("users", '{"email": "ann@example.org", "n": 1}')
        yield site


def test_what_is_masked_never_leaves(guarded: Site) -> None:
    answers = [
        json.dumps(guarded.get("/topics/users/records", **query))
        for query in ({}, {"value": "text"}, {"value": "base64"}, {"value": "hex"})
    ]
    answers += [
        guarded.page("/topics/users/messages"),
        guarded.page("/topics/users/messages/0/0", value="json"),
    ]
    answers += [guarded.page("/topics/users/messages/export", format=name) for name in ("jsonl", "csv")]
    for text in answers:
        assert "ann@" not in text
        assert "YW5uQ" not in text
        assert "61 6e 6e 40" not in text
    assert guarded.get("/topics/users/records", text="ann@example")["records"] == []


def test_a_read_only_console_refuses_changes_and_does_not_offer_them(guarded: Site) -> None:
    path = "/api/clusters/local/topics/users/records"
    for call, body in (
        (path, {"value": "x"}),
        (f"{path}/0/0/replay", {}),
        (f"{path}/import", {"format": "csv"}),
    ):
        refused = httpx.post(f"{guarded.url}{call}", json=body, timeout=30)
        assert refused.json()["error"]["code"] == "READ_ONLY"
    page = guarded.page("/topics/users/messages")
    assert 'id="produce"' not in page
    assert 'id="import"' not in page


def test_a_wrong_rules_file_ends_the_start_with_the_setting(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"masks": [{"topic": "("}]}')
    with pytest.raises(Exception, match=r"console.rules.file=.*rules.json: .*not a regular expression"):
        Broker({"console.listener": "127.0.0.1:0", "console.rules.file": str(rules)}).start()


def test_the_command_refuses_a_wrong_rules_file(tmp_path: Path) -> None:
    missing = str(tmp_path / "rules.json")
    done = CliRunner().invoke(main, ["console", "--bootstrap-server", "127.0.0.1:1", "--rules-file", missing])
    assert done.exit_code == 1
    assert "rules.json" in done.stderr
