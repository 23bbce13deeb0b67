"""`tidelog sql`: topics as tables, conditions that limit what is fetched, results in every form."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.client_tools import NewName, Tool, make_topic, tool
from tidelog.cli.main import main
from tidelog.cli.sql_plan import Evaluator, Interval, Wanted, plan_query
from tidelog.clients.consumer.blocking import Consumer
from tidelog.clients.producer.blocking import Producer

__all__ = ["tool"]

duckdb = pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")

Plan = Callable[[str], dict[str, Wanted]]


@pytest.fixture(scope="module")
def evaluator() -> Evaluator:
    connection = duckdb.connect()
    connection.execute("set TimeZone = 'UTC'")
    return Evaluator(lambda text, values: connection.execute(text, values).fetchall()[0][0])


@pytest.fixture(scope="module")
def plan(evaluator: Evaluator) -> Plan:
    return lambda query: plan_query(query, {"t": 1, "u": 1}, evaluator).topics


def offsets(low: int | None = None, high: int | None = None) -> Wanted:
    return Wanted(offsets=Interval(low, high))


def times(low: int | None = None, high: int | None = None) -> Wanted:
    return Wanted(times=Interval(low, high))


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ('"offset" >= 5', offsets(5)),
        ('"offset" > 5 and 9 >= "offset"', offsets(6, 10)),
        ('"offset" = 2 + 3', offsets(5, 6)),
        ('"offset" between 3 and 9', offsets(3, 10)),
        ('"offset" < 4.5', offsets(high=5)),
        ('"offset" in (3, 9)', offsets(3, 10)),
        ("partition = 2", Wanted(partitions=frozenset({2}))),
        ("partition in (1, 2) and partition = 2", Wanted(partitions=frozenset({2}))),
        ("t.partition = 1", Wanted(partitions=frozenset({1}))),
        ("timestamp >= '2020-09-13 12:26:40'", times(1_600_000_000_000)),
        ("timestamp < timestamp '2020-09-13 12:26:40.0005'", times(high=1_600_000_000_001)),
        ("timestamp > to_timestamp(1600000000)", times(1_600_000_000_001)),
        # Conditions that say nothing about every row.
        ('"offset" = 1 or partition = 1', Wanted()),
        ('not ("offset" = 1)', Wanted()),
        ('"offset" > partition', Wanted()),
        ('"offset" > (select 1)', Wanted()),
        ("partition > 1", Wanted()),
        ('"offset" > random()', Wanted()),
        ('"offset" < 5 + random() * 10', Wanted()),
        ("u.partition = 1", Wanted()),
        ("value = 'x'", Wanted()),
    ],
)
def test_conditions_become_ranges(plan: Plan, where: str, wanted: Wanted) -> None:
    found = plan(f"select * from t where {where}")["t"]
    assert found == wanted


@pytest.mark.parametrize(
    ("tables", "left"),
    [
        ("t asof join u on t.timestamp >= u.timestamp", offsets(5)),
        ("t positional join u", Wanted()),
        ("t tablesample 10%, u tablesample 10%", Wanted()),
    ],
)
def test_tables_whose_rows_are_chosen_before_the_conditions_are_read_whole(
    plan: Plan, tables: str, left: Wanted
) -> None:
    """Without the row that ASOF takes, it takes another one, which the query does not ask for."""
    found = plan(f'select * from {tables} where t."offset" >= 5 and u."offset" < 3')
    assert found == {"t": left, "u": Wanted()}


def test_tables_of_a_query(plan: Plan) -> None:
    assert plan("select 1") == {}
    assert plan("with t as (select 1) select * from t") == {}
    assert plan("select * from t a join u b using (key) where a.partition = 1") == {
        "t": Wanted(partitions=frozenset({1})),
        "u": Wanted(),
    }
    assert plan("select * from t, u where partition = 1") == {"t": Wanted(), "u": Wanted()}
    union = 'select 1 from t where "offset" < 3 union all select 2 from t where "offset" between 5 and 8'
    assert plan(union) == {"t": offsets(high=9)}
    within = "value in (select key from u where partition = 0)"
    inner = f'select * from (select * from t where "offset" > 3) where {within}'
    assert plan(inner) == {"t": offsets(4), "u": Wanted(partitions=frozenset({0}))}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select from", "syntax error"),
        ("create table x(a int)", "only SELECT"),
        ("copy t to 'x.csv'", "only SELECT"),
        ("select 1; select 2", "one SELECT"),
    ],
)
def test_what_is_no_select_is_refused(plan: Plan, query: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(query)


@pytest.fixture
def topic(bootstrap: str, tool: Tool, new_name: NewName) -> str:
    name = make_topic(tool, new_name("t"), 2)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for index in range(10):
            value = json.dumps({"n": index, "user": {"id": f"u{index % 3}"}, "key": "hidden", "Offset": 1})
            producer.send(
                name, value.encode(), b"k", [("h", b"1")], index % 2, 1_600_000_000_000 + index * 1000
            )
        producer.send(name, b"no json", b"\xff", [], 0, 1_600_000_060_000)
        producer.send(name, None, None, [], 1, 1_600_000_060_000)
    return name


def rows(tool: Tool, query: str, *more: str) -> list[dict[str, object]]:
    result = tool("sql", query, "--output", "json", *more)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_queries(tool: Tool, topic: str) -> None:
    assert rows(tool, f'select count(*) as c, sum(n) as s from "{topic}"') == [{"c": 12, "s": 45}]
    by_user = f'select user.id as id, max(n) as n from "{topic}" where n is not null group by 1 order by 1'
    assert rows(tool, by_user) == [{"id": "u0", "n": 9}, {"id": "u1", "n": 7}, {"id": "u2", "n": 8}]
    last = f'select key, value, headers, key_bytes from "{topic}" where "offset" = 5 order by partition'
    assert rows(tool, last) == [
        {"key": None, "value": "no json", "headers": [], "key_bytes": "\xff"},
        {"key": None, "value": None, "headers": [], "key_bytes": None},
    ]
    late = f"""select partition, "offset", headers[1].value as h from "{topic}"
        where timestamp between '2020-09-13 12:26:42' and '2020-09-13 12:26:43' order by all"""
    assert rows(tool, late) == [
        {"partition": 0, "offset": 1, "h": "1"},
        {"partition": 1, "offset": 1, "h": "1"},
    ]
    assert rows(tool, f'select * from "{topic}" where n = 3')[0]["n"] == 3


def test_what_is_fetched_is_shown(tool: Tool, topic: str) -> None:
    def explained(where: str, *more: str) -> dict[str, object]:
        result = tool("sql", f'select * from "{topic}" where {where}', "--explain", "--output", "json", *more)
        (found,) = json.loads(result.stdout)
        assert isinstance(found, dict)
        return found

    assert explained("true")["offsets"] == 12
    found = explained('partition = 1 and "offset" >= 4')
    assert (found["partitions"], found["of_partitions"], found["offsets"]) == (1, 2, 2)
    assert explained("timestamp >= '2020-09-13 12:26:47'")["offsets"] == 5
    bounded = "timestamp < '2020-09-13 12:26:42'"
    assert explained(bounded)["offsets"] == 12, "a later record may have an earlier timestamp"
    assert explained(bounded, "--ordered")["offsets"] == 2
    assert explained('"offset" > 1000')["offsets"] == 0


def test_joins_with_files_and_forms(tool: Tool, topic: str, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    users = tmp_path / "users.parquet"
    pq.write_table(pa.table({"id": ["u0", "u1"], "name": ["Zoe", "Yan"]}), users)
    query = f"""select u.name, count(*) as c from "{topic}" t join '{users}' u on t.user.id = u.id
        group by 1 order by 1"""
    assert rows(tool, query) == [{"name": "Yan", "c": 3}, {"name": "Zoe", "c": 4}]
    assert list(csv.reader(StringIO(tool("sql", query, "--output", "csv").stdout))) == [
        ["name", "c"], ["Yan", "3"], ["Zoe", "4"],
    ]  # fmt: skip
    assert tool("sql", query).stdout.splitlines() == ["NAME  C", "Yan   3", "Zoe   4"]
    out = tmp_path / "out.parquet"
    assert tool("sql", query, "--output", "parquet", "--to", str(out)).exit_code == 0
    assert pq.read_table(out).to_pydict() == {"name": ["Yan", "Zoe"], "c": [3, 4]}
    assert tool("sql", query, "--output", "parquet").exit_code == 1
    assert tool("sql", f'select key from "{topic}" where false', "--output", "csv").stdout == "key\n"


def test_a_value_that_is_nested_too_deeply_is_text(tool: Tool, topic: str) -> None:
    deep = '{"n":' * 300 + "1" + "}" * 300
    wide = json.dumps({"deep": [{"}": "{["}] * 200})
    assert tool("produce", topic, "-o", "", given=f"{deep}\n{wide}\n").exit_code == 0
    query = f'select * from "{topic}" where length(value) > 1000 order by length(value)'
    found = rows(tool, query)
    assert [row["value"] for row in found] == sorted((deep, wide), key=len)
    assert [len(row["deep"]) for row in found if row["deep"]] == [200]  # type: ignore[arg-type]


def test_mistakes_are_told_in_a_line(tool: Tool, topic: str) -> None:
    make_topic(tool, topic.upper())
    for query, words in (
        ("select * from nowhere", "there is no topic 'nowhere'"),
        (f'select * from "{topic}s"', f"did you mean '{topic}'?"),
        (f'select nothing from "{topic}"', "nothing"),
        (f'select 1 from "{topic}" a, "{topic.upper()}" b', "are one name in SQL"),
        (f'select 1 from "{topic}" where offset > 1', "stands in double quotes"),
    ):
        result = tool("sql", query)
        assert result.exit_code == 1
        assert words in result.stderr
        assert "Traceback" not in result.output


def test_without_duckdb_a_line_says_how_to_get_it(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    result = tool("sql", "select 1")
    assert result.exit_code == 1
    assert "pip install 'tidelog[sql]'" in result.stderr


def test_a_broker_that_is_not_there_is_told_as_soon_as_by_consume(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.cli.topic_checks.UNKNOWN_TOPIC_SECONDS", 0.05)
    waits: list[float | None] = []
    topics = Consumer.topics

    def noted(consumer: Consumer, timeout: float | None = None) -> set[str]:
        waits.append(timeout)
        return topics(consumer, timeout)

    monkeypatch.setattr(Consumer, "topics", noted)
    result = CliRunner().invoke(main, ["sql", "select 1 from t", "--bootstrap-server", "127.0.0.1:1"])
    assert (result.exit_code, waits) == (1, [0.05])
    assert result.stderr.endswith("tidelog: no broker answered at 127.0.0.1:1\n")
