"""Events of an app for tests of earnings and regions, and what a plain computation over them gives."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from tidelog import Admin, NewTopic, Producer
from tidelog.spark.pipelines.days import DAY_MS

Event: TypeAlias = dict[str, object]

CREDITS, TASKS, PHONES = "ml_obtain_credit_log", "ml_task_log", "ml_message_verify_log"
START_MS = 1_750_000_000_000
NUMBERS = {
    "+8613912345678": ("CN", "mobile"),
    "+14155552671": ("US", "fixed_line_or_mobile"),
    "+442079460018": ("GB", "fixed_line"),
    "12": (None, None),
}


@dataclass
class App:
    """Makes events, in a seeded order, and remembers them. Some come late, some twice, some are broken."""

    bootstrap: str
    seed: int
    users: int = 40
    sent: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._count = 0

    def make_topics(self, partitions: int = 2) -> None:
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics(
                [NewTopic(name, num_partitions=partitions) for name in (CREDITS, TASKS, PHONES)]
            )

    def send(self, count: int) -> None:
        with Producer(bootstrap_servers=self.bootstrap) as producer:
            for _ in range(count):
                topic, event = self._event()
                value = json.dumps(event).encode()
                luck = self.random.random()
                if luck < 0.05 and self.sent[topic]:
                    value = self.random.choice(self.sent[topic])  # once more what was sent before
                elif luck < 0.08:
                    value = value[:-5]
                self.sent[topic].append(value)
                producer.send(topic, value, key=str(event["user_id"]).encode())
            producer.flush()

    def _event(self) -> tuple[str, Event]:
        draw = self.random
        self._count += 1
        event: Event = {
            "event_id": f"{self.seed}-{self._count}",
            "version": 1,
            "ts": START_MS + self._count * 1000 - (draw.randrange(3 * DAY_MS) if draw.random() < 0.2 else 0),
            "user_id": f"user-{draw.randrange(self.users)}",
            "device_id": "phone",
            "ip": "10.0.0.1",
        }
        topic = draw.choice((CREDITS, CREDITS, TASKS, PHONES))
        if topic == CREDITS:
            event |= {"amount": draw.randrange(-20, 500), "reason": "task", "ad_id": None}
        elif topic == TASKS:
            event |= {"task_id": f"task-{draw.randrange(2)}", "step": draw.randrange(1, 71), "steps": 70}
        else:
            event |= {
                "phone": draw.choice(list(NUMBERS)),
                "ok": draw.random() < 0.9,
                "attempt": 1,
                "country": None,
            }
        return topic, event

    def events(self, topic: str) -> list[Event]:
        """The sound events of a topic, each id once."""
        found: dict[str, Event] = {}
        for value in self.sent[topic]:
            try:
                event = json.loads(value)
            except ValueError:
                continue
            found.setdefault(event["event_id"], event)
        return list(found.values())

    def balances(self) -> set[tuple[str, ...]]:
        """User, balance, number of events and time of the last one, as texts."""
        return {
            (user, str(sum(amounts)), str(len(amounts)), shown(max(times)))
            for (user,), (amounts, times) in self._credited("user_id").items()
        }

    def days(self) -> set[tuple[str, ...]]:
        return {
            (user, day, str(sum(amounts)), str(len(amounts)))
            for (user, day), (amounts, _) in self._credited("user_id", "day").items()
        }

    def _credited(self, *by: str) -> dict[tuple[str, ...], tuple[list[int], list[int]]]:
        found: dict[tuple[str, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for event in self.events(CREDITS):
            ts, amount = event["ts"], event["amount"]
            assert isinstance(ts, int)
            assert isinstance(amount, int)
            keys = {**event, "day": datetime.fromtimestamp(ts / 1000, UTC).date().isoformat()}
            amounts, times = found[tuple(str(keys[name]) for name in by)]
            amounts.append(amount)
            times.append(ts)
        return found

    def tasks(self) -> set[tuple[str, ...]]:
        """User, task, steps that were done, steps in all, and whether that is all of them."""
        done: dict[tuple[str, str], set[object]] = defaultdict(set)
        for event in self.events(TASKS):
            done[str(event["user_id"]), str(event["task_id"])].add(event["step"])
        return {
            (user, task, str(len(steps)), "70", str(len(steps) == 70)) for (user, task), steps in done.items()
        }

    def regions(self) -> set[tuple[str, ...]]:
        """User, country and type of the number, from the newest verification that went well."""
        newest: dict[str, Event] = {}
        for event in sorted(self.events(PHONES), key=lambda each: (each["ts"], str(each["event_id"]))):
            if event["ok"]:
                newest[str(event["user_id"])] = event
        return {
            (user, *("" if part is None else part for part in NUMBERS[str(event["phone"])]))
            for user, event in newest.items()
        }


def shown(ts: int) -> str:
    moment = datetime.fromtimestamp(ts // 1000, UTC).replace(microsecond=ts % 1000 * 1000)
    return str(moment.replace(tzinfo=None))  # as the tables have it
