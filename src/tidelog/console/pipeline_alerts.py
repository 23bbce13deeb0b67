"""The alerts of pipelines on the overview: how many there are, and the newest of them.

`AlertDigests` reads the alert tables on a thread, at most every `REFRESH_SECONDS` and only if a table has
changed, so that a page never waits for a large table.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidelog.console.errors import ApiError
from tidelog.console.pipeline_data import shown, table_root

log = logging.getLogger("tidelog.console")

REFRESH_SECONDS: Final = 10.0
FIRST_WAIT_SECONDS: Final = 0.1
"""How long the first request of a folder waits for its digest."""
NEWEST: Final = 3
NEWEST_FILES: Final = 8
"""The files of a table that are searched for its newest alerts."""
COLUMNS: Final = ("alert_id", "rule", "subject", "raised_at")


@dataclass(frozen=True, slots=True)
class AlertBrief:
    """An alert without its evidence."""

    alert_id: str
    pipeline: str
    rule: str
    subject: str
    raised_at: str


@dataclass(frozen=True, slots=True)
class AlertDigest:
    """The number of alerts in a data folder, and the newest of them, the newest first."""

    count: int
    newest: tuple[AlertBrief, ...] = ()


def read_digest(folder: str) -> AlertDigest:
    """The digest of a local data folder. Blocks. Raises ApiError 501 if the folder is a store."""
    from tidelog.spark.pipelines.report_facts import ALERT_TABLES

    root = table_root(folder)
    count, found = 0, []
    for table, pipeline in ALERT_TABLES.items():
        if (root / table / "_delta_log").is_dir():
            own, newest = _read_table(root / table, pipeline)
            count += own
            found += newest
    found.sort(key=lambda alert: alert.raised_at, reverse=True)
    return AlertDigest(count, tuple(found[:NEWEST]))


def _read_table(path: Path, pipeline: str) -> tuple[int, list[AlertBrief]]:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(str(path))
        dataset = table.to_pyarrow_dataset()
        if not {*COLUMNS} <= {*dataset.schema.names}:
            return 0, []
        files = {each["path"]: each for each in pa.table(table.get_add_actions(flatten=True)).to_pylist()}
        counts = [each.get("num_records") for each in files.values()]
        count = dataset.count_rows() if None in counts else sum(counts)
        fragments = sorted(
            dataset.get_fragments(),
            key=lambda each: files.get(each.path, {}).get("modification_time") or 0,
            reverse=True,
        )
        rows: list[dict[str, object]] = []
        for fragment in fragments[:NEWEST_FILES]:
            found = fragment.to_table(schema=dataset.schema, columns=list(COLUMNS))
            rows += found.sort_by([("raised_at", "descending")]).slice(0, NEWEST).to_pylist()
    except (DeltaError, OSError):
        return 0, []  # the table is being made or replaced; the next digest has it
    briefs = [
        AlertBrief(pipeline=pipeline, **{name: shown(row[name]) or "" for name in COLUMNS}) for row in rows
    ]
    return count, briefs


def stamp_of(folder: str) -> tuple[str, ...]:
    """A value that changes with every commit to an alert table of the folder."""
    from tidelog.spark.pipelines.report_facts import ALERT_TABLES

    root = table_root(folder)
    return tuple(
        max((each.name for each in (root / table / "_delta_log").glob("*.json")), default="")
        for table in ALERT_TABLES
    )


@dataclass(slots=True)
class _Kept:
    digest: AlertDigest | None = None
    stamp: tuple[str, ...] = ()
    looked_at: float = float("-inf")
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class AlertDigests:
    """The digests of data folders, renewed in the background while somebody asks for them."""

    def __init__(
        self,
        read: Callable[[str], AlertDigest] = read_digest,
        stamp: Callable[[str], tuple[str, ...]] = stamp_of,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._stamp = stamp
        self._now = now
        self._kept: dict[str, _Kept] = {}

    async def get(self, folders: Sequence[str]) -> list[AlertDigest | None]:
        """The digest of each folder; None for one that is not read yet or cannot be read.

        Waits at most FIRST_WAIT_SECONDS, and only for folders that nobody has asked for before.
        """
        first = [task for folder in folders if (task := self._begin(folder)) is not None]
        if first:
            await asyncio.wait(first, timeout=FIRST_WAIT_SECONDS)
        return [self._kept[folder].digest for folder in folders]

    def _begin(self, folder: str) -> asyncio.Task[None] | None:
        """Begin to renew a digest if it is time. Returns the task if there is no digest to show yet."""
        kept = self._kept.setdefault(folder, _Kept())
        is_first = kept.looked_at == float("-inf")
        if kept.task is None and self._now() - kept.looked_at >= REFRESH_SECONDS:
            kept.looked_at = self._now()
            kept.task = asyncio.create_task(self._renew(folder, kept))
        return kept.task if is_first else None

    async def _renew(self, folder: str, kept: _Kept) -> None:
        try:
            stamp = await asyncio.to_thread(self._stamp, folder)
            if kept.digest is None or stamp != kept.stamp:
                kept.digest = await asyncio.to_thread(self._read, folder)
                kept.stamp = stamp
        except (ApiError, ImportError) as error:
            log.debug("no alerts of %s: %s", folder, error)
        except Exception:
            log.warning("the alerts of %s cannot be read", folder, exc_info=True)
        finally:
            kept.task = None
            kept.looked_at = self._now()
