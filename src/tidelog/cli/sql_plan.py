"""What a query needs of each topic: the conditions of WHERE on offset, partition and timestamp become ranges.

DuckDB parses the query. Only conditions that every row of a topic must fulfil count: the parts of an AND.
DuckDB still evaluates all conditions: a range may fetch more than the query returns, and never less.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

# A node of DuckDB's syntax tree, as JSON.
Node = Mapping[str, Any]

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "key_bytes", "value_bytes")
HERE = "tidelog: the expression"
PUSHED = ("offset", "partition", "timestamp")
VOLATILE = frozenset({"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval", "setseed"})
"""Functions that have another value in each row."""
MIRRORED = {
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_EQUAL": "COMPARE_EQUAL",
}


@dataclass(slots=True, frozen=True)
class Interval:
    """Whole numbers from `low` up to before `high`; None where it is open."""

    low: int | None = None
    high: int | None = None

    def both(self, other: Interval) -> Interval:
        """The numbers in both."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Interval(max(lows, default=None), min(highs, default=None))

    def either(self, other: Interval) -> Interval:
        """An interval with the numbers of both."""
        low = None if self.low is None or other.low is None else min(self.low, other.low)
        high = None if self.high is None or other.high is None else max(self.high, other.high)
        return Interval(low, high)


@dataclass(slots=True, frozen=True)
class Wanted:
    """The records of a topic that a query can return: offsets, milliseconds, partitions (None for all)."""

    offsets: Interval = field(default_factory=Interval)
    times: Interval = field(default_factory=Interval)
    partitions: frozenset[int] | None = None

    def both(self, other: Wanted) -> Wanted:
        partitions = self.partitions
        if partitions is None or other.partitions is None:
            partitions = other.partitions if partitions is None else partitions
        else:
            partitions = partitions & other.partitions
        return Wanted(self.offsets.both(other.offsets), self.times.both(other.times), partitions)

    def either(self, other: Wanted) -> Wanted:
        partitions = None
        if self.partitions is not None and other.partitions is not None:
            partitions = self.partitions | other.partitions
        return Wanted(self.offsets.either(other.offsets), self.times.either(other.times), partitions)

    def words(self) -> str:
        """The conditions for people."""
        found = []
        if self.partitions is not None:
            found.append(f"partition in ({', '.join(map(str, sorted(self.partitions)))})")
        for name, interval in (("offset", self.offsets), ("timestamp", self.times)):
            if interval.low is not None:
                found.append(f"{name} >= {interval.low}")
            if interval.high is not None:
                found.append(f"{name} < {interval.high}")
        return " and ".join(found) or "everything"


@dataclass(slots=True, frozen=True)
class QueryPlan:
    """The topics of a query, and the columns that it names; `star` if it takes all columns."""

    topics: dict[str, Wanted]
    columns: frozenset[str]
    star: bool

    def fields(self) -> frozenset[str]:
        """The columns that can only be fields of JSON values."""
        return frozenset(name for name in self.columns if name.lower() not in COLUMNS)


class Evaluator:
    """Evaluates an expression without columns; None if it cannot be. Times are milliseconds."""

    def __init__(self, execute: Callable[[str, list[object]], object]) -> None:
        self._execute = execute

    def tree(self, query: str) -> Node:
        """The syntax tree of a query. Raises ValueError with DuckDB's words."""
        found = json.loads(str(self._execute("select json_serialize_sql(?::varchar)", [query])))
        if found["error"]:
            message = str(found["error_message"])
            if "Only SELECT" in message:
                message = "only SELECT statements can be run"
            if message.endswith('at or near "offset"'):
                message += ": a column of this name stands in double quotes"
            raise ValueError(message)
        if len(found["statements"]) != 1:
            raise ValueError("expected one SELECT statement")
        assert isinstance(found, dict)
        return found

    def number(self, expression: Node, *, is_time: bool, up: bool) -> int | None:
        """The whole number of an expression, rounded up or down; of a time, its milliseconds."""
        value = f"try_cast('{HERE}' as decimal(38, 6))"
        if is_time:
            value = f"epoch_us(try_cast('{HERE}' as timestamptz)) / 1000.0"
        return self._evaluated(expression, f"cast({'ceil' if up else 'floor'}({value}) as bigint)")

    def _evaluated(self, expression: Node, form: str) -> int | None:
        if any(
            "column_names" in node or "subquery" in node or node.get("function_name") in VOLATILE
            for node in nodes(expression)
        ):
            return None
        tree = dict(self.tree(f"select {form}"))
        tree["statements"] = [substituted(tree["statements"][0], expression)]
        try:
            value = self._execute("select * from json_execute_serialized_sql(?::varchar)", [json.dumps(tree)])
        except Exception:  # an expression that fails here fails in the query, too
            return None
        return value if isinstance(value, int) else None


def substituted(node: Any, expression: Node) -> Any:
    """A tree in which the expression stands for the constant HERE."""
    if isinstance(node, list):
        return [substituted(each, expression) for each in node]
    if not isinstance(node, dict):
        return node
    if node.get("class") == "CONSTANT" and HERE in json.dumps(node):
        return expression
    return {name: substituted(each, expression) for name, each in node.items()}


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """All objects of a tree."""
    if isinstance(tree, dict):
        yield tree
        for each in tree.values():
            yield from nodes(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from nodes(each)


def plan_query(query: str, known: Mapping[str, object], evaluator: Evaluator) -> QueryPlan:
    """The existing topics that a query names, and the columns and offsets it needs of each."""
    tree = evaluator.tree(query)
    common = {entry["key"] for node in nodes(tree) for entry in node.get("cte_map", {}).get("map", [])}
    topics: dict[str, Wanted] = {}
    for select in nodes(tree):
        if select.get("type") != "SELECT_NODE":
            continue
        tables = list(base_tables(select["from_table"]))
        for table in tables:
            name = table["table_name"]
            if name in common or name not in known:
                continue
            wanted = Wanted()
            if not table["needs_all"]:
                wanted = conditions(select["where_clause"], table, len(tables) == 1, evaluator)
            topics[name] = wanted if name not in topics else topics[name].either(wanted)
    # Tables outside of SELECT nodes, such as in PIVOT, are read whole.
    for table in nodes(tree):
        name = table.get("table_name")
        if table.get("type") == "BASE_TABLE" and name in known and name not in common:
            topics.setdefault(str(name), Wanted())
    columns = frozenset(name for node in nodes(tree) for name in node.get("column_names", []))
    return QueryPlan(topics, columns, any(node.get("class") == "STAR" for node in nodes(tree)))


def base_tables(node: Node | None, *, needs_all: bool = False) -> Iterator[Node]:
    """The tables of this FROM clause. Tables of subqueries are left out.

    `needs_all` is true for a table whose rows are chosen before WHERE is asked, by their number or as the
    nearest ones: with fewer rows other ones would be chosen.
    """
    if node is None:
        return
    if node["type"] == "JOIN":
        kind = node["ref_type"]
        yield from base_tables(node["left"], needs_all=needs_all or kind == "POSITIONAL")
        yield from base_tables(node["right"], needs_all=needs_all or kind in ("POSITIONAL", "ASOF"))
    elif node["type"] != "EMPTY":
        yield {"table_name": None, **node, "needs_all": needs_all or node.get("sample") is not None}


def conditions(where: Node | None, table: Node, alone: bool, evaluator: Evaluator) -> Wanted:
    """What the conditions of AND ask of a table; `alone` if columns without a table can only be its own."""
    if where is None:
        return Wanted()
    if where["type"] == "CONJUNCTION_AND":
        found = Wanted()
        for child in where["children"]:
            found = found.both(conditions(child, table, alone, evaluator))
        return found

    def column(node: Node) -> str | None:
        names = [str(name).lower() for name in node.get("column_names", [])]
        own = str(table["alias"] or table["table_name"]).lower()
        if len(names) == 1 and not alone:
            return None
        if len(names) == 2 and names[0] != own:
            return None
        return names[-1] if 1 <= len(names) <= 2 and names[-1] in PUSHED else None

    kind = where["type"]
    if kind in MIRRORED:
        left, right = where["left"], where["right"]
        if name := column(left):
            return compared(name, kind, right, evaluator)
        if name := column(right):
            return compared(name, MIRRORED[kind], left, evaluator)
    elif kind == "COMPARE_BETWEEN" and (name := column(where["input"])):
        low = compared(name, "COMPARE_GREATERTHANOREQUALTO", where["lower"], evaluator)
        return low.both(compared(name, "COMPARE_LESSTHANOREQUALTO", where["upper"], evaluator))
    elif kind == "COMPARE_IN" and (name := column(where["children"][0])):
        each = [compared(name, "COMPARE_EQUAL", child, evaluator) for child in where["children"][1:]]
        return reduce(Wanted.either, each)
    return Wanted()


def compared(column: str, kind: str, expression: Node, evaluator: Evaluator) -> Wanted:
    """What a comparison of a column with an expression asks; everything if its value is not known here."""
    up = kind == "COMPARE_LESSTHAN"
    value = evaluator.number(expression, is_time=column == "timestamp", up=up)
    if value is None:
        return Wanted()
    interval = {
        "COMPARE_EQUAL": Interval(value, value + 1),
        "COMPARE_GREATERTHAN": Interval(low=value + 1),
        "COMPARE_GREATERTHANOREQUALTO": Interval(low=value),
        "COMPARE_LESSTHAN": Interval(high=value),
        "COMPARE_LESSTHANOREQUALTO": Interval(high=value + 1),
    }[kind]
    if column == "partition":
        return Wanted(partitions=frozenset({value})) if kind == "COMPARE_EQUAL" else Wanted()
    return Wanted(offsets=interval) if column == "offset" else Wanted(times=interval)
