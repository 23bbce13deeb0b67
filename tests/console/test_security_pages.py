"""ACLs, quotas, SCRAM users and transactions on the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.console.site import Site
from tests.support.raw import RawConnection
from tests.support.wait import eventually
from tests.transactions.by_hand import hanging_transaction, produce
from tests.transactions.reading import read
from tidelog import Producer
from tidelog.records.batch import Record, build_batch
from tidelog.testing import Broker

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def secure() -> Iterator[Site]:
    settings = {
        "console.listener": "127.0.0.1:0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(settings) as broker, Site(broker) as site:
        yield site


def change(site: Site, method: str, path: str, **body: Any) -> httpx.Response:
    """A change by a program, which has no cookies."""
    return httpx.request(method, f"{site.url}/api/clusters/local{path}", json=body, timeout=30)


def test_templates_make_the_rules_of_producers_and_consumers(secure: Site) -> None:
    wanted = {"principal": "User:app", "template": "producer", "topic": "a-", "pattern": "prefixed"}
    made = change(secure, "POST", "/acls", **wanted)
    assert made.status_code == 200, made.text
    change(secure, "POST", "/acls", principal="User:app", template="consumer", topic="orders", group="g")
    rules = {
        (rule["operation"], rule["resource"], rule["name"], rule["pattern"])
        for rule in secure.get("/acls", search="user:app")["rules"]
    }
    assert rules == {
        ("Write", "Topic", "a-", "prefixed"),
        ("Describe", "Topic", "a-", "prefixed"),
        ("Create", "Topic", "a-", "prefixed"),
        ("Read", "Topic", "orders", "literal"),
        ("Describe", "Topic", "orders", "literal"),
        ("Read", "Group", "g", "literal"),
    }


def test_one_rule_is_added_and_deleted(secure: Site) -> None:
    rule = {"resource": "Topic", "name": "x", "operation": "Read", "permission": "Deny"}
    answer = change(secure, "POST", "/acls", principal=f"User:{HOSTILE}", **rule)
    assert answer.status_code == 200, answer.text
    made = answer.json()["rules"][0]
    page = secure.page("/security/acls", search="script")
    assert HOSTILE not in page
    assert "&lt;script&gt;" in page
    assert change(secure, "DELETE", "/acls", **made).status_code == 200
    assert change(secure, "DELETE", "/acls", **made).status_code == 404
    assert secure.get("/acls", search="script")["rules"] == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"principal": "app", "template": "producer", "topic": "x"}, "write User:app"),
        ({"principal": "User:a", "template": "consumer", "topic": "x"}, "needs a group"),
        ({"principal": "User:a", "resource": "Moon", "name": "x"}, "is one of"),
        ({"principal": "User:a", "resource": "Group", "name": "x", "operation": "Write"}, "the operations"),
        ({"principal": "User:a", "resource": "Topic"}, "name of a resource"),
    ],
)
def test_a_wrong_rule_says_what_is_wrong(secure: Site, body: Any, message: str) -> None:
    answer = change(secure, "POST", "/acls", **body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_quotas_are_set_shown_and_removed(secure: Site) -> None:
    assert change(secure, "PUT", "/quotas", user="alice", producer_byte_rate=1e6).status_code == 200
    assert change(secure, "PUT", "/quotas", default="client-id", request_percentage=50).status_code == 200
    found = {(item["user"], item["client_id"]): item["values"] for item in secure.get("/quotas")["quotas"]}
    assert found == {("alice", None): {"producer_byte_rate": 1e6}, (None, ""): {"request_percentage": 50.0}}
    page = secure.page("/security/quotas")
    assert "alice" in page
    assert "1.0 MB/s" in page
    assert change(secure, "PUT", "/quotas", user="alice", producer_byte_rate=-1).status_code == 200
    for body in ({}, {"user": "a"}, {"ip": "10.0.0.1", "user": "a"}, {"user": "a", "producer_byte_rate": 0}):
        assert change(secure, "PUT", "/quotas", **body).status_code == 400
    refused = change(secure, "PUT", "/quotas", user="a", consumer_byte_rate=-2).json()["error"]["message"]
    assert refused == "consumer_byte_rate is -2: a quota is a number above 0, or -1 to remove it."


def test_scram_users_are_made_and_deleted_and_no_password_comes_back(secure: Site) -> None:
    made = change(secure, "PUT", "/users", user="bob", password="bob's long word")
    assert made.status_code == 200, made.text
    assert "long word" not in made.text
    assert secure.get("/users")["users"] == [
        {"user": "bob", "mechanisms": ["SCRAM-SHA-512"], "iterations": [8192]}
    ]
    assert "bob" in secure.page("/security/users")
    assert change(secure, "PUT", "/users", user="bob", password="short").status_code == 400
    mistyped = change(secure, "DELETE", "/users", user="bob", confirm="bo")
    assert mistyped.status_code == 400
    assert mistyped.json()["error"]["message"] == "Type the name of the user to confirm: bob, not 'bo'."
    assert change(secure, "DELETE", "/users", user="bob", confirm="bob").status_code == 200
    assert secure.get("/users")["users"] == []
    assert not any("long word" in line for line in secure.broker.log_lines())


def test_a_cluster_without_an_authorizer_says_so(site: Site) -> None:
    assert site.get("/acls")["disabled"] is True
    assert "has no authorizer" in site.page("/security/acls")


def test_open_transactions_are_listed_oldest_first_and_can_be_aborted(secure: Site) -> None:
    secure.broker.create_topic("tx-orders")
    with Producer(
        bootstrap_servers=secure.broker.bootstrap_servers, transactional_id=HOSTILE, client_id="tx"
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("tx-orders", b"one").result()
        found = eventually(lambda: secure.get("/transactions")["transactions"], "the transaction is open")
        assert found[0]["transactional_id"] == HOSTILE
        assert found[0]["state"] == "Ongoing"
        assert found[0]["partitions"] == [["tx-orders", 0]]
        page = secure.page("/transactions")
        assert HOSTILE not in page
        # The coordinator knows it: it does not hang.
        assert secure.get("/transactions/hanging", topic="tx-orders", minutes=0)["hanging"] == []
        assert "No transaction hangs" in secure.page("/transactions/hanging", topic="tx-orders", minutes=0)
        wrong = change(secure, "POST", "/transactions/terminate", transactional_id=HOSTILE, confirm="x")
        assert wrong.status_code == 400
        done = change(secure, "POST", "/transactions/terminate", transactional_id=HOSTILE, confirm=HOSTILE)
        assert done.status_code == 200, done.text
        eventually(lambda: not secure.get("/transactions")["transactions"], "it has ended")
        gone = {"topic": "tx-orders", "partition": 0, "start_offset": 0}
        unknown = change(secure, "POST", "/transactions/abort", **gone)
        assert unknown.status_code == 404


def test_a_hanging_transaction_is_found_and_aborted(secure: Site) -> None:
    """A record that came after the end of its transaction stops read_committed consumers until the abort."""
    bootstrap = secure.broker.bootstrap_servers
    secure.broker.create_topic("late")
    with RawConnection(bootstrap) as connection:
        start = hanging_transaction(connection, bootstrap, "late", "hangs")
        produce(connection, "late", 0, bytes(build_batch([Record(0, 1_700_000_000_000, None, b"after")])))
    assert read(bootstrap, "late") == [[]]
    listed = eventually(lambda: secure.get("/transactions/hanging")["hanging"], "the transaction is found")
    assert [(each["topic"], each["partition"], each["start_offset"]) for each in listed] == [
        ("late", 0, start)
    ]
    assert "late" in secure.page("/transactions/hanging", topic="late")
    where = {"topic": "late", "partition": 0, "start_offset": start}
    done = change(secure, "POST", "/transactions/abort", **where)
    assert done.status_code == 200, done.text
    assert secure.get("/transactions/hanging", topic="late")["hanging"] == []
    eventually(lambda: read(bootstrap, "late") == [[b"after"]], "consumers go on")
