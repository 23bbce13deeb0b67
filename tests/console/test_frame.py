"""The frame of the console: pages, API, errors, protection against other sites, start and stop."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from tests.console.site import Site, is_running
from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.console import areas
from tidelog.testing import Broker


def test_the_overview_is_the_first_page(client: httpx.Client) -> None:
    answer = client.get("/", follow_redirects=True)
    assert answer.url.path == "/clusters/local"
    assert "Healthy" in answer.text


def test_each_area_has_a_key_of_its_own() -> None:
    keys = [item.shortcut for item in areas.nav()]
    assert len(keys) == len(set(keys)) >= 7


def test_every_answer_forbids_foreign_scripts_and_frames(client: httpx.Client) -> None:
    for path in ("/clusters/local", "/api/clusters/local/topics", "/static/console.css", "/nothing"):
        headers = client.get(path).headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


def test_pages_have_no_inline_script_or_style(site: Site) -> None:
    for path in ("", "/topics"):
        text = site.page(path)
        assert not re.search(r"<script(?![^>]*src=)", text)
        # In tags: the name of a group may have such words, as text.
        assert not re.search(r"<[^>]*\s(?:on\w+|style)=|<style|javascript:", text)


def test_the_topics_are_listed_with_their_exact_counts(site: Site) -> None:
    site.broker.create_topic("frame-counted", 2)
    site.broker.produce("frame-counted", b"a", b"b", b"c")
    eventually(
        lambda: [topic["records"] for topic in site.get("/topics", search="FRAME count")["topics"]] == [3],
        "the topic is listed with its records",
    )
    found = site.get("/topics", search="FRAME count")
    assert found["topics"][0]["partitions"] == 2
    assert "frame-counted" in site.page("/topics", search="frame-counted")


def test_an_unknown_cluster_topic_or_path_is_404_with_a_sentence(client: httpx.Client) -> None:
    for path in ("/api/clusters/no/topics", "/api/clusters/local/topics/no-such", "/api/nothing"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.json()["error"]["message"].endswith(".")
    page = client.get("/clusters/no/topics")
    assert page.status_code == 404
    assert "The cluster no does not exist." in page.text


def test_a_wrong_parameter_is_named(client: httpx.Client) -> None:
    answer = client.get("/api/clusters/local/topics", params={"page": "0"})
    assert answer.status_code == 400
    assert "page" in answer.json()["error"]["message"]


def test_another_method_is_405(client: httpx.Client) -> None:
    answer = client.put("/api/clusters/local/overview", json={})
    assert answer.status_code == 405
    assert "GET" in answer.headers["allow"]


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd"]
)
def test_static_files_come_from_their_folder_alone(site: Site, path: str) -> None:
    host, _, port = site.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b" 404 " in answer.split(b"\r\n", 1)[0]


def test_a_foreign_host_name_gets_nothing_from_a_loopback_console(client: httpx.Client) -> None:
    answer = client.get("/api/clusters/local/topics", headers={"host": "evil.example:80"})
    assert answer.status_code == 421
    assert client.get("/api/clusters", headers={"host": "localhost:1"}).status_code == 200


def test_the_description_names_every_endpoint(client: httpx.Client) -> None:
    document = client.get("/api/openapi.json").json()
    listed = document["paths"]["/api/clusters/{cluster}/topics"]["get"]
    assert {"search", "page", "sort"} <= {parameter["name"] for parameter in listed["parameters"]}
    assert "TopicList" in document["components"]["schemas"]
    assert {"/api/clusters", "/clusters/{cluster}/topics/{topic}/messages/export"} <= document["paths"].keys()
    export = document["paths"]["/clusters/{cluster}/topics/{topic}/messages/export"]["get"]
    assert {"format", "start", "filter"} <= {parameter["name"] for parameter in export["parameters"]}
    assert "text/csv" in export["responses"]["200"]["content"]


def test_a_console_ends_with_its_broker() -> None:
    with Broker({"console.listener": "127.0.0.1:0"}) as broker, Site(broker) as site:
        url, pid = site.url, site.pid
        assert httpx.get(f"{url}/api/clusters", timeout=30).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/api/clusters", timeout=30)
    assert not is_running(pid)


def test_a_port_in_use_ends_the_start_with_the_setting_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Exception, match=f"console.listener={address}: .*in use"):
            Broker({"console.listener": address}).start()


def test_without_the_extra_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.console.extra.PACKAGES", ("no_such_package",))
    line = "the console needs no_such_package: pip install 'tidelog[console]'"
    with pytest.raises(Exception, match=re.escape(line)):
        Broker({"console.listener": "127.0.0.1:0"}).start()
    done = CliRunner().invoke(main, ["console", "--bootstrap-server", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert done.stderr.strip() == f"tidelog: {line}"


def test_the_cluster_names_of_the_command_are_checked() -> None:
    for arguments in ([], ["--cluster", "a"], ["--cluster", "a/b=c:1"], ["--cluster", "a=b:1"] * 2):
        done = CliRunner().invoke(main, ["console", *arguments])
        assert done.exit_code == 2, done.output


def test_the_static_files_have_licences() -> None:
    static = Path(str(__import__("tidelog.console", fromlist=["x"]).__file__)).parent / "static"
    for library in ("htmx", "htmx-sse", "uplot"):
        assert (static / f"{library}.min.js").is_file()
        assert (static / f"{library}.LICENSE").is_file()
