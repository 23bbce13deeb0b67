"""The log of a Delta table: commits that take each batch of a writer exactly once.

Commits go by one protocol. A driver takes a snapshot *before* it writes files. If the snapshot has the batch,
there is nothing to do. Otherwise the driver commits its files from that same snapshot: Delta refuses the
commit if the table has got a batch of the same writer since. (From a newer snapshot Delta would take the
batch a second time.) After a refusal the driver looks again who has written what.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tidelog.spark.tables.errors import Fenced, ForeignCheckpoint, TableError, VersionGone
from tidelog.spark.tables.identity import (
    METADATA,
    Batch,
    Commit,
    batch_app,
    checkpoint_app,
    commit_from,
    digest,
    metadata_of,
    offsets_app,
    this_driver,
)
from tidelog.spark.tables.live_files import live_files, live_paths

COMMIT_ATTEMPTS = 30
"""A driver gives up after so many refusals because of other writers. Each refusal is another writer's
success."""
REWRITE = "tidelog:rewrite"
"""The application id of every commit that removes files. Of two such commits from one snapshot Delta refuses
the second, which it would not do for removals without a change of data: both would add the same rows."""
MIGRATION = "tidelog:migration"
"""The application id of the first commit of a migrated table."""
_HISTORY = (20, 500, None)
_BESIDE_TYPES = ("nullable", "containsNull", "valueContainsNull", "metadata")

Act = Callable[[DeltaTable, CommitProperties], None]
"""Commits from a snapshot with these properties. Raises CommitFailedError if Delta refuses it."""


class Snapshot:
    """A table at one version."""

    def __init__(self, name: str, table: DeltaTable) -> None:
        self.name = name
        self.table = table

    @property
    def version(self) -> int:
        return self.table.version()

    @property
    def partition_by(self) -> tuple[str, ...]:
        return tuple(self.table.metadata().partition_columns)

    def last_batch(self, writer: str) -> int:
        """The number of the newest batch of a writer; -1 if the table has none."""
        found = self.table.transaction_version(batch_app(writer))
        return -1 if found is None else found

    def has(self, batch: Batch) -> bool:
        """Whether the table has this batch already.

        Raises ForeignCheckpoint if the writer's batches came from another checkpoint or with other offsets,
        and Fenced if another driver is ahead with the same checkpoint.
        """
        newest = self.last_batch(batch.writer)
        if newest < 0:
            return False
        if not self._agree(batch.checkpoint, checkpoint_app(batch.writer)):
            raise ForeignCheckpoint(self._other_checkpoint(batch, newest))
        if batch.number > newest:
            return False
        if batch.number < newest:
            raise self._behind(batch, newest)
        if not self._agree(batch.offsets, offsets_app(batch.writer)):
            raise ForeignCheckpoint(self._other_offsets(batch))
        return True

    def commit_of(self, writer: str, number: int) -> Commit | None:
        """The commit of a batch; None if the log does not have it, or no longer."""
        wanted = (commit for commit in self.commits() if commit.batch.writer == writer)
        for commit in wanted:
            if commit.batch.number <= number:
                return commit if commit.batch.number == number else None
        return None

    def commits(self) -> Iterator[Commit]:
        """The commits of batches, newest first, as far back as the log goes."""
        seen = 0
        for limit in _HISTORY:
            entries = self.table.history(limit)
            for entry in entries[seen:]:
                held = entry.get(METADATA)
                commit = commit_from(entry["version"], held) if isinstance(held, dict) else None
                if commit is not None:
                    yield commit
            seen = len(entries)
            if limit is None or seen < limit:
                return

    def _agree(self, text: str, app: str) -> bool:
        """Whether a text is the one that the table recorded. One that is empty or not recorded agrees."""
        recorded = self.table.transaction_version(app) if text else None
        return recorded is None or recorded == digest(text)

    def _behind(self, batch: Batch, newest: int) -> TableError:
        if batch.checkpoint and self.table.transaction_version(checkpoint_app(batch.writer)) is not None:
            return fenced(self, batch)
        return ForeignCheckpoint(
            f"table {self.name} has batch {newest} of {batch.writer} and cannot take batch {batch.number}: "
            f"the checkpoint of {batch.writer} is not the one that wrote the table. Put that checkpoint "
            f"back, or remove the table ({self.table.table_uri}) to write all of it again"
        )

    def _other_checkpoint(self, batch: Batch, newest: int) -> str:
        commit = self.commit_of(batch.writer, newest)
        known = f" {commit.batch.checkpoint}" if commit is not None and commit.batch.checkpoint else ""
        return (
            f"table {self.name} has {batch.writer} up to batch {newest} from the checkpoint{known}, and "
            f"batch {batch.number} comes from the checkpoint {batch.checkpoint}, which counts its batches "
            f"anew: it would double or lose rows. Put the old checkpoint back, or remove the table "
            f"({self.table.table_uri}) to write all of it again"
        )

    def _other_offsets(self, batch: Batch) -> str:
        commit = self.commit_of(batch.writer, batch.number)
        if commit is None:
            known = "other offsets"
        else:
            known = f"the offsets {commit.batch.offsets}, written by {commit.driver}"
        return (
            f"table {self.name} has batch {batch.number} of {batch.writer} with {known}, and this driver has "
            f"planned it with {batch.offsets}: the rows in between would be lost or doubled. Two drivers "
            f"have used one checkpoint, or the checkpoint was put back from a copy: put the newest "
            f"checkpoint back and run one driver, or remove the table ({self.table.table_uri}) to write all "
            f"of it again"
        )


class DeltaLog:
    """The log of the table at `uri`."""

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        """`storage_options` are those of delta-rs. They may have secrets and are never shown."""
        self.uri = uri.rstrip("/")
        self.name = self.uri.rpartition("/")[2]
        self._storage_options = dict(storage_options) if storage_options else None

    def exists(self) -> bool:
        return DeltaTable.is_deltatable(self.uri, self._storage_options)

    def create(
        self,
        schema: Schema,
        partition_by: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
    ) -> Snapshot:
        """Create the table unless it exists, and return a snapshot of it."""
        try:
            DeltaTable.create(
                self.uri,
                schema,
                mode="ignore",
                partition_by=list(partition_by),
                configuration=dict(configuration or {}),
                storage_options=self._storage_options,
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            # Two processes created it at the same time. The other one was first.
            if not self.exists():
                raise
        return self.snapshot()

    def with_columns(self, schema: Schema, partition_by: Sequence[str] = ()) -> Snapshot:
        """A snapshot of the table with at least these columns. Creates the table if it does not exist.

        Raises TableError if a column of the table has another type.
        """
        snapshot = self.snapshot() if self.exists() else self.create(schema, partition_by)
        while True:
            check_types(snapshot, schema)
            names = {field.name for field in snapshot.table.schema().fields}
            missing = [field for field in schema.fields if field.name not in names]
            if not missing:
                return snapshot
            # Another writer may change the columns at the same moment: look at them again.
            with suppress(CommitFailedError):
                snapshot.table.alter.add_columns(missing)
            snapshot = self.snapshot()

    def snapshot(self, version: int | None = None, timestamp: str | datetime | None = None) -> Snapshot:
        """The newest version of the table, or that of a number or a moment. TableError if there is none."""
        try:
            table = DeltaTable(self.uri, version=version, storage_options=self._storage_options)
            if timestamp is not None:
                table.load_as_version(timestamp)
        except TableNotFoundError:
            raise TableError(f"there is no table {self.name} at {self.uri}") from None
        except (DeltaError, ValueError) as error:
            if version is None and timestamp is None:
                raise
            raise VersionGone(
                f"table {self.name} has no version {version if version is not None else timestamp} (any "
                f"more): {first_line(error)}"
            ) from error
        return Snapshot(self.name, table)

    def last_batch(self, writer: str) -> int:
        """The number of the newest batch of a writer; -1 if the table has none."""
        return self.snapshot().last_batch(writer)

    def commit(
        self,
        snapshot: Snapshot,
        batch: Batch,
        adds: Sequence[AddAction] = (),
        removes: Sequence[RemoveAction] = (),
        aside: Sequence[str] | None = None,
    ) -> None:
        """Commit these files as a batch that `snapshot`, taken before the files were written, did not have.

        Without files only the batch is recorded. `aside` names files that the batch put aside. Raises Fenced
        if another driver has written it since, and TableError if a file to remove has been removed meanwhile.
        """

        def act(table: DeltaTable, properties: CommitProperties) -> None:
            _check_present(self.name, table, removes)
            # Delta ignores this schema and this mode's checks: the caller has compared the columns.
            table.create_write_transaction(
                [*adds, *removes],
                "append",
                table.schema(),
                table.metadata().partition_columns,
                commit_properties=properties,
            )

        self.attempt(snapshot, batch, act, rewrites=bool(removes), aside=aside)

    def attempt(
        self,
        snapshot: Snapshot,
        batch: Batch,
        act: Act,
        *,
        rewrites: bool,
        serial: bool = False,
        aside: Sequence[str] | None = None,
    ) -> None:
        """Call `act` on the snapshot, and on newer ones while other writers are faster.

        `rewrites` says that the commit may remove files. `serial` refuses it after any other commit since the
        snapshot, also one that Delta sees no conflict with.
        """
        attempt = uuid.uuid4().hex
        for _ in range(COMMIT_ATTEMPTS):
            try:
                held = properties(batch, attempt, snapshot.version if rewrites else None, aside)
                if serial:
                    held.max_commit_retries = 0
                act(snapshot.table, held)
                return
            except CommitFailedError as error:
                refusal = error
                snapshot = self.snapshot()
                if snapshot.last_batch(batch.writer) >= batch.number:
                    commit = snapshot.commit_of(batch.writer, batch.number)
                    if commit is not None and commit.attempt == attempt:
                        return  # the store had taken our commit, and its answer was lost
                    raise fenced(snapshot, batch) from error
        raise TableError(
            f"table {self.name} did not take batch {batch.number} of {batch.writer} in {COMMIT_ATTEMPTS} "
            f"attempts, because other writers were faster: {first_line(refusal)}"
        )

    def delete(self, snapshot: Snapshot, chosen: Callable[[Mapping[str, object]], bool]) -> bool:
        """Delete the partitions whose values `chosen` accepts; False if any rewrite was faster.

        delta-rs' own deletion panics in a folder with a square bracket in its name.
        """
        now = int(time.time() * 1000)
        removes = [
            RemoveAction(file.path, True, now, file.size, file.partition)
            for file in live_files(snapshot.table)
            if chosen(dict(file.values))
        ]
        if not removes:
            return True
        fence = CommitProperties(app_transactions=[Transaction(REWRITE, snapshot.version)])
        try:
            snapshot.table.create_write_transaction(
                [*removes],
                "append",
                snapshot.table.schema(),
                snapshot.table.metadata().partition_columns,
                commit_properties=fence,
            )
        except CommitFailedError:
            return False
        return True

    def replace(
        self,
        snapshot: Snapshot,
        adds: Sequence[AddAction],
        removes: Sequence[RemoveAction],
        metadata: Mapping[str, object] | None = None,
    ) -> bool:
        """Replace files by others with the same rows, as a compaction does; False if any rewrite was faster.

        All actions have `data_change` False.
        """
        changes = [*(add.data_change for add in adds), *(remove.data_change for remove in removes)]
        assert not any(changes), "the files have the same rows"
        driver = this_driver()
        held = {"host": driver.host, "pid": driver.pid, "run": driver.run, **(metadata or {})}
        try:
            snapshot.table.create_write_transaction(
                [*adds, *removes],
                "append",
                snapshot.table.schema(),
                snapshot.table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata={METADATA: held},
                    app_transactions=[Transaction(REWRITE, snapshot.version)],
                ),
            )
        except CommitFailedError:
            return False
        return True


def check_types(snapshot: Snapshot, schema: Schema) -> None:
    """Raise TableError if a column has another type in the table. Nullability and metadata do not count."""
    types = {field.name: _plain_type(field) for field in snapshot.table.schema().fields}
    for field in schema.fields:
        known, wanted = types.get(field.name), _plain_type(field)
        if known is not None and known != wanted:
            raise TableError(
                f"column {field.name} is {known} in table {snapshot.name} and {wanted} in the rows: "
                "files with both cannot be read"
            )


def _plain_type(field: Field) -> str:
    """The type of a column by Delta's name for it; that of a nested column as JSON."""
    found = _required(json.loads(field.type.to_json()))
    return found if isinstance(found, str) else json.dumps(found)


def _required(kind: object) -> object:
    """A type as JSON, without the parts that say what may be null, and without metadata."""
    if isinstance(kind, list):
        return [_required(one) for one in kind]
    if isinstance(kind, dict):
        return {name: _required(value) for name, value in kind.items() if name not in _BESIDE_TYPES}
    return kind


def properties(
    batch: Batch, attempt: str, rewritten: int | None = None, aside: Sequence[str] | None = None
) -> CommitProperties:
    """The properties of a batch's commit. `rewritten` is the version whose files the commit removes."""
    versions = batch.transactions
    if rewritten is not None:
        versions[REWRITE] = rewritten
    now = int(time.time() * 1000)
    return CommitProperties(
        custom_metadata={METADATA: metadata_of(batch, this_driver(), attempt, aside)},
        app_transactions=[Transaction(app, version, now) for app, version in versions.items()],
    )


def fenced(snapshot: Snapshot, batch: Batch) -> Fenced:
    newest = snapshot.last_batch(batch.writer)
    commit = snapshot.commit_of(batch.writer, newest)
    other = "another driver" if commit is None else f"another driver ({commit.driver})"
    return Fenced(
        f"table {snapshot.name} has batch {newest} of {batch.writer} from {other}, so this driver "
        f"({this_driver()}) does not write batch {batch.number}. Nothing of it is in the table. Let one of "
        f"them run: both use the same checkpoint, or this one was put back from an older copy"
    )


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _check_present(name: str, table: DeltaTable, removes: Sequence[RemoveAction]) -> None:
    """Delta removes a file that is gone without a word: its rows would be in the table twice."""
    if not removes:
        return
    present = set(live_paths(table))
    gone = [action.path for action in removes if action.path not in present]
    if gone:
        raise TableError(f"another writer has replaced {gone[0]}, which was a file of table {name}")
