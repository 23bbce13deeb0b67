"""Generates any number of events of the app. The same plan gives the same bytes.

Most events come from `generator_world` in columns, the scenes of cheaters and honest users from
`generator_scenes`. As the plan says, some arrive late, out of order, twice or broken. The timestamp of a
record is its arrival. Chunks of the time line are made one after the other, so memory does not grow with the
events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.spark.pipelines.days import DAY_MS
from tidelog.spark.pipelines.events import EVENTS
from tidelog.spark.pipelines.generator_scenes import Cheaters, SceneEvent, Scenes
from tidelog.spark.pipelines.generator_world import Rows, World

CHUNK = 50_000
SHUFFLED_WITHIN = 20_000
"""An event out of order arrives up to this many milliseconds late."""
TWICE_WITHIN = 120_000
"""A duplicate arrives within this many milliseconds of the original."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of a run. Fractions are of all events; times are in milliseconds."""

    events: int
    start: int
    seed: int = 0
    span: int = DAY_MS
    users: int = 0
    """0: one for every 50 events."""
    devices: int = 0
    """0: four for every five users, so that some share one."""
    late: float = 0.0
    late_by: int = 600_000
    out_of_order: float = 0.0
    broken: float = 0.0
    duplicates: float = 0.0
    cheaters: Cheaters = field(default_factory=Cheaters)
    chunk: int = CHUNK
    steady: bool = False
    """Spread events evenly over time, instead of more by day than by night."""

    def __post_init__(self) -> None:
        for name in ("late", "out_of_order", "broken", "duplicates"):
            part = getattr(self, name)
            if not 0 <= part <= 1:
                raise ValueError(f"{name.replace('_', '-')} is {part}; expected a fraction from 0 to 1")
        for name, least in (
            ("events", 0),
            ("start", 0),
            ("span", 1),
            ("users", 0),
            ("late_by", 0),
            ("chunk", 1),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if self.broken + self.duplicates > 0.9:
            raise ValueError(
                "broken and duplicates leave less than a tenth of the events; expected at most 0.9 together"
            )
        if self.device_count * 3 < self.user_count:
            raise ValueError(
                f"{self.device_count} devices for {self.user_count} users: at most three users share one"
            )

    @property
    def user_count(self) -> int:
        return self.users or max(20, self.events // 50)

    @property
    def device_count(self) -> int:
        return self.devices or -(-self.user_count * 4 // 5)

    @property
    def end(self) -> int:
        return self.start + self.span


@dataclass(slots=True)
class Truth:
    """The facts of a run: the subjects that each rule should find, those it should not, and event counts."""

    seed: int
    start: int
    end: int
    cheaters: dict[str, list[str]]
    """By rule: devices, addresses, inviters or rings."""
    honest: dict[str, list[str]]
    """By kind: devices, addresses and users that come near a rule and do not break it."""
    events: dict[str, int] = field(default_factory=dict)
    """By topic: good events, each counted once."""
    broken: dict[str, int] = field(default_factory=dict)
    """By kind of breakage."""
    duplicates: int = 0
    late: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Truth:
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records by topic, in the order of their arrival: columns key, value and timestamp."""

    tables: dict[str, pa.Table]
    until: int
    """All records arrived before this time."""

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables.values())


class Generator:
    """The events of a plan. `truth` is complete after the last chunk."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._rng = np.random.default_rng(plan.seed)
        self._scenes = Scenes(plan.seed, plan.start, plan.span, plan.cheaters, plan.events // 20_000)
        self._broken = round(plan.events * plan.broken)
        self._twice = round(plan.events * plan.duplicates)
        self._bulk = plan.events - self._broken - self._twice - len(self._scenes.events)
        if self._bulk < 0:
            raise ValueError(
                f"events is {plan.events}: the planted cheaters alone need "
                f"{plan.events - self._bulk}, broken and duplicate events included"
            )
        self._world = World(plan.user_count, plan.device_count, self._rng)
        self._waiting: dict[str, list[pa.Table]] = {topic: [] for topic in EVENTS}
        self._ids = 0
        self._prefix = f"{plan.seed:x}-{plan.start:x}-"
        self._scenes_at = 0
        self.truth = Truth(plan.seed, plan.start, plan.end, self._scenes.caught, self._scenes.spared)
        self.truth.events = dict.fromkeys(EVENTS, 0)

    def chunks(self) -> Iterator[Chunk]:
        count = max(1, -(-self.plan.events // self.plan.chunk))
        borders = self._borders(count)
        for number in range(count):
            begin, end = int(borders[number]), int(borders[number + 1])
            self._make(number, count, begin, max(end, begin + 1))
            last = number == count - 1
            yield self._arrived(None if last else end, end)

    def _borders(self, count: int) -> list[float]:
        """Cut the time line into pieces with the same number of events: days have more than nights."""
        plan = self.plan
        at = np.linspace(plan.start, plan.end, 2_000)
        hours = at / 3_600_000
        density = np.ones(len(at)) if plan.steady else 1 + 0.7 * np.sin((hours - 9) / 24 * 2 * np.pi)
        passed = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        return list(np.interp(np.linspace(0, passed[-1], count + 1), passed, at))

    def _make(self, number: int, count: int, begin: int, end: int) -> None:
        """Add the events of one piece of time to the events that wait for their arrival."""
        made: dict[str, list[pa.Table]] = {}
        bulk = _part(self._bulk, number, count)
        for rows in self._world.business(bulk, begin, end) if bulk else ():
            ids = pa.array(np.arange(self._ids, self._ids + len(rows.ts))).cast(pa.string())
            self._ids += len(rows.ts)
            made.setdefault(rows.topic, []).append(self._table(rows, ids))
        for topic, events in self._due(end, last=number == count - 1).items():
            made.setdefault(topic, []).append(self._scene_table(events))
        for topic, tables in made.items():
            self.truth.events[topic] += sum(table.num_rows for table in tables)
            self._waiting[topic] += [self._delayed(table) for table in tables]
        self._repeat(made, _part(self._twice, number, count))
        self._spoil(made, _part(self._broken, number, count))

    def _table(self, rows: Rows, ids: pa.Array) -> pa.Table:
        values = self._world.values(rows, ids, self._prefix)
        return _table(self._world.keys(rows), values.cast(pa.binary()), pa.array(rows.ts))

    def _due(self, end: int, *, last: bool) -> dict[str, list[SceneEvent]]:
        """The events of scenes before a time."""
        found: dict[str, list[SceneEvent]] = {}
        events = self._scenes.events
        while self._scenes_at < len(events) and (last or events[self._scenes_at].ts < end):
            event = events[self._scenes_at]
            found.setdefault(event.topic, []).append(event)
            self._scenes_at += 1
        return found

    def _scene_table(self, events: list[SceneEvent]) -> pa.Table:
        values = []
        for event in events:
            envelope = {"event_id": f"{self._prefix}{self._ids}", "version": 1, "ts": event.ts}
            who = {"user_id": event.user, "device_id": event.device, "ip": event.ip}
            values.append(json.dumps({**envelope, **who, **event.rest}, separators=(",", ":")).encode())
            self._ids += 1
        keys, times = [event.user for event in events], [event.ts for event in events]
        return _table(pa.array(keys), pa.array(values, pa.binary()), pa.array(times, pa.int64()))

    def _delayed(self, table: pa.Table) -> pa.Table:
        """The same rows, some with a later arrival."""
        plan, rng, rows = self.plan, self._rng, table.num_rows
        if not plan.late and not plan.out_of_order:
            return table
        chance = rng.random(rows)
        late = chance < plan.late
        shuffled = ~late & (chance < plan.late + plan.out_of_order)
        delay = (
            late * rng.uniform(0.05, 1, rows) * plan.late_by + shuffled * rng.random(rows) * SHUFFLED_WITHIN
        )
        self.truth.late += int(late.sum())
        return _later(table, delay.astype(np.int64))

    def _repeat(self, made: dict[str, list[pa.Table]], count: int) -> None:
        for topic, table in self._picked(made, count):
            self.truth.duplicates += table.num_rows
            self._waiting[topic].append(_later(table, self._rng.integers(1, TWICE_WITHIN, table.num_rows)))

    def _spoil(self, made: dict[str, list[pa.Table]], count: int) -> None:
        """Add broken copies of events."""
        for topic, table in self._picked(made, count):
            values = []
            for value in table["value"].to_pylist():
                way = BREAKAGES[int(self._rng.integers(len(BREAKAGES)))]
                self.truth.broken[way.name] = self.truth.broken.get(way.name, 0) + 1
                values.append(way.spoil(value))
            self._waiting[topic].append(table.set_column(1, "value", pa.array(values, pa.binary())))

    def _picked(self, made: dict[str, list[pa.Table]], count: int) -> Iterator[tuple[str, pa.Table]]:
        """`count` rows, drawn evenly from all topics."""
        sizes = {topic: sum(table.num_rows for table in tables) for topic, tables in made.items()}
        total = sum(sizes.values())
        if not total:
            return
        drawn = np.sort(self._rng.integers(0, total, count))
        for topic, size in sizes.items():
            rows, drawn = drawn[drawn < size], drawn[drawn >= size] - size
            if len(rows):
                yield topic, pa.concat_tables(made[topic]).take(pa.array(rows))

    def _arrived(self, before: int | None, until: int) -> Chunk:
        """The events that arrived before a time, in order; the others keep waiting.

        None stands for the end of the run. Nothing arrives after that, since brokers refuse records from the
        future.
        """
        tables: dict[str, pa.Table] = {}
        for topic, waiting in self._waiting.items():
            if not waiting:
                continue
            table = pa.concat_tables(waiting).combine_chunks()
            self._waiting[topic] = []
            if before is not None:
                here = pc.less(table["timestamp"], before)
                rest = table.filter(pc.invert(here))
                if rest.num_rows:
                    table = table.filter(here)
                    self._waiting[topic].append(rest)
            else:
                arrival = pc.min_element_wise(table["timestamp"], self.plan.end)
                table = table.set_column(2, "timestamp", arrival)
            if table.num_rows:
                order = np.argsort(table["timestamp"].to_numpy(), kind="stable")
                tables[topic] = table.take(pa.array(order)).combine_chunks()
        return Chunk(tables, until)


@dataclass(frozen=True, slots=True)
class Breakage:
    """A way to break an event."""

    name: str
    spoil: Callable[[bytes], bytes | None]


BREAKAGES = (
    Breakage("not JSON", lambda value: b"<event>" + value[1:-1] + b"</event>"),
    Breakage("wrong type", lambda value: value.replace(b'"ts":', b'"ts":"soon","was":', 1)),
    Breakage("missing field", lambda value: value.replace(b'"user_id":', b'"user":', 1)),
    Breakage("unknown version", lambda value: value.replace(b'"version":1', b'"version":900', 1)),
    Breakage("truncated", lambda value: value[: len(value) // 2]),
    Breakage("empty", lambda value: b""),
    Breakage("null value", lambda value: None),
    Breakage("invalid UTF-8", lambda value: value.replace(b'"user_id":"', b'"user_id":"\xff\xc0', 1)),
)


def _part(total: int, number: int, count: int) -> int:
    """The size of one of `count` pieces; the sizes add up to the total."""
    return total * (number + 1) // count - total * number // count


def _table(keys: pa.Array, values: pa.Array, times: pa.Array) -> pa.Table:
    return pa.table({"key": keys, "value": values, "timestamp": times})


def _later(table: pa.Table, delay: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    times = table["timestamp"].to_numpy() + delay
    return table.set_column(2, "timestamp", pa.array(times))
