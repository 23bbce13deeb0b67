"""Tables as the pipelines write them, made without Spark: what the report is tested on."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

START = datetime(2026, 3, 14, 8, 0, tzinfo=UTC)
MINUTES = 300

Row = dict[str, object]
TIMESTAMP = pa.timestamp("us", "UTC")
ALERT = pa.schema(
    [
        ("alert_id", pa.string()),
        ("rule", pa.string()),
        ("subject", pa.string()),
        ("window_start", TIMESTAMP),
        ("window_end", TIMESTAMP),
        ("raised_at", TIMESTAMP),
        ("evidence", pa.string()),
    ]
)
REGION = pa.schema(
    [(name, pa.string()) for name in ("user_id", "country", "region", "number_type")]
    + [("updated_at", TIMESTAMP)]
)
BALANCE = pa.schema(
    [("user_id", pa.string()), ("balance", pa.int64()), ("events", pa.int64()), ("last_event_at", TIMESTAMP)]
)
QUARANTINE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("error", pa.string()),
        ("raw", pa.binary()),
    ]
)
EVENT = pa.schema(
    [("event_id", pa.string()), ("ts", pa.int64()), ("user_id", pa.string()), ("ad_id", pa.string())]
)


def write_table(
    data: Path, name: str, rows: Sequence[Row], schema: pa.Schema, day: str | None = None
) -> DeltaTable:
    """One more version of a table. Tables of users are keyed by them: the rows replace earlier ones."""
    folder = data / "tables" / name
    table = pa.Table.from_pylist(list(rows), schema)
    if day is not None:
        days = pa.array([date.fromisoformat(day)] * table.num_rows, pa.date32())
        table = table.append_column("day", days)
    if schema in (BALANCE, REGION) and DeltaTable.is_deltatable(str(folder)):
        merger = DeltaTable(str(folder)).merge(table, "t.user_id = s.user_id", "s", "t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
    else:
        write_deltalake(folder, table, mode="append", partition_by=["day"] if day is not None else None)
    return DeltaTable(str(folder))


def event(kind: str, number: int, when: datetime, ad: str | None = None) -> Row:
    return {
        "event_id": f"{kind}-{number}",
        "ts": int(when.timestamp() * 1000),
        "user_id": f"u{number % 97}",
        "ad_id": ad,
    }


def alert(rule: str, subject: str, minute: int, evidence: object) -> Row:
    start = START + timedelta(minutes=minute)
    return {
        "alert_id": f"{rule}-{subject}-{minute}",
        "rule": rule,
        "subject": subject,
        "window_start": start,
        "window_end": start + timedelta(minutes=10),
        "raised_at": start + timedelta(minutes=11),
        "evidence": evidence if isinstance(evidence, str) else json.dumps(evidence),
    }


def balance(user: str, units: int) -> Row:
    return {"user_id": user, "balance": units, "events": units // 3 + 1, "last_event_at": START}


def region(user: str, country: str | None, place: str | None) -> Row:
    kind = "MOBILE" if country else None
    return {"user_id": user, "country": country, "region": place, "number_type": kind, "updated_at": START}


def bad(topic: str, offset: int, error: str, raw: bytes | None) -> Row:
    return {"topic": topic, "partition": 0, "offset": offset, "timestamp": START, "error": error, "raw": raw}


def fill(data: Path, seed: int) -> None:
    """Every table of the pipelines, with a believable afternoon in it."""
    chance = random.Random(seed)
    kinds = {"exposures": 60, "left_swipes": 14, "right_swipes": 40, "credits": 30, "logins": 6}
    for kind, rate in {**kinds, "verifications": 3, "installs": 2}.items():
        rows = [
            event(kind, number, START + timedelta(minutes=minute, seconds=chance.random() * 60), _ad(chance))
            for minute in range(MINUTES)
            for number in range(int(rate * (1 + math.sin(minute / 40)) * chance.uniform(0.8, 1.2)))
        ]
        write_table(data, kind, rows, EVENT, "2026-03-14")
    _fill_findings(data, chance)


def _ad(chance: random.Random) -> str:
    return f"ad-{int(chance.expovariate(0.2)):03d}"


def _fill_findings(data: Path, chance: random.Random) -> None:
    devices = [
        alert(
            "account-switching",
            f"d{n}",
            n * 7,
            {"accounts": 6 + n, "switches": 9 + n, "users": [f"u{n}", "u9"]},
        )
        for n in range(23)
    ]
    invites = [
        alert(
            rule,
            f"u{n}",
            n * 5,
            {"invitees": n + 8, "device": f"d{n}", "sample": [{"id": "u1", "minute": 3}]},
        )
        for rule, count in (("one-device", 60), ("one-address", 18), ("ring", 4), ("never-act", 9))
        for n in range(count)
    ]
    write_table(data, "device_alerts", devices, ALERT, "2026-03-14")
    write_table(data, "invite_alerts", invites, ALERT, "2026-03-14")
    places = [
        ("DE", "Berlin"),
        ("DE", "Hamburg"),
        ("GB", "London"),
        ("IN", None),
        ("US", "Iowa"),
        (None, None),
    ]
    write_table(data, "user_regions", [region(f"u{n}", *chance.choice(places)) for n in range(900)], REGION)
    earned = [balance(f"u{n}", int(chance.lognormvariate(5, 0.7)) - 20) for n in range(2000)]
    write_table(data, "balances", earned, BALANCE)
    broken = [bad("ml_ad_exposure_log", n, "field ts is missing", b'{"event_id": "e1"}') for n in range(120)]
    broken += [
        bad("ml_obtain_credit_log", n, "expected a JSON object, found string", b"\xff<nonsense>")
        for n in range(44)
    ]
    write_table(data, "quarantine", broken, QUARANTINE, "2026-03-14")
