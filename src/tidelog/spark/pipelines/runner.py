"""Runs pipelines: every flow as a streaming query with its checkpoint, all in one Spark session.

`run(["earnings"], data="./here")` blocks until the pipelines have ended. `start(...)` returns a `Running`,
whose `turn()` the caller calls repeatedly. A stop lets running micro-batches end and begins no others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.spark.cluster import AdminLink
from tidelog.spark.files import Files
from tidelog.spark.pipelines import batch_metrics, state
from tidelog.spark.pipelines.batch_metrics import MetricsFiles, MetricsLog, MetricsTable
from tidelog.spark.pipelines.checkpoint_folder import checkpoint_folder, refuse_moved
from tidelog.spark.pipelines.declare import Context, Flow, Pipeline, SettingValue
from tidelog.spark.pipelines.metrics_endpoint import FlowMetrics, MetricsEndpoint
from tidelog.spark.pipelines.migrate import refuse_old_tables
from tidelog.spark.pipelines.query import FlowQuery, Place, in_session
from tidelog.spark.pipelines.reasons import FlowFailed, flow_failed
from tidelog.spark.pipelines.registry import check_flows, find_all
from tidelog.spark.pipelines.run_options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_DATA,
    DEFAULT_TRIGGER,
    Options,
    check_deploy_mode,
    trigger_arguments,
    wanted_partitions,
)
from tidelog.spark.pipelines.run_session import (
    SparkDied,
    check_spark,
    new_session,
    spark_alive,
    wait_for_old_jvm,
)
from tidelog.spark.pipelines.settings import resolve
from tidelog.spark.pipelines.state import (
    Claim,
    FlowStatus,
    LeaseLost,
    PipelineStatus,
    StateFolder,
    check_same_place,
    store_of,
)
from tidelog.spark.pipelines.state_partitions import (
    SETTING,
    in_checkpoint,
    session_with,
    warn_of_other,
)
from tidelog.spark.pipelines.topics import prepare_topics
from tidelog.spark.tables.maintenance import Maintenance, MaintenanceSettings, from_settings
from tidelog.spark.tables.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TURN_SECONDS = 0.1
LOOK_SECONDS = 0.5
"""Between two looks at the progress of all queries: Spark sends a page of JSON for each of them."""
STATUS_SECONDS = 1.0
SOURCE_SECONDS = 120.0
START_ATTEMPTS = 5


@dataclass(slots=True)
class RunningPipeline:
    """One pipeline of a run: its queries and its status for other programs."""

    pipeline: Pipeline
    settings: Mapping[str, SettingValue]
    flows: tuple[Flow, ...]
    claim: Claim
    status: PipelineStatus
    queries: list[FlowQuery] = field(default_factory=list)
    stop_deadline: float | None = None
    stopped_cleanly: bool = True

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def ended(self) -> bool:
        return all(query.ended for query in self.queries)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a run: the last status of each pipeline, and the micro-batches that were cut off."""

    pipelines: dict[str, PipelineStatus]
    stopped_cleanly: bool
    cut_off: tuple[str, ...] = ()
    """The micro-batches that a stop cut off, such as `micro-batch 3 of earnings/credits`."""

    @property
    def rows(self) -> int:
        return sum(status.rows for status in self.pipelines.values())


class Running:
    """Started pipelines. Close it, or leave its `with` block, to end them."""

    def __init__(
        self,
        pipelines: list[RunningPipeline],
        options: Options,
        folder: StateFolder,
        maintenance: MaintenanceSettings | None = None,
    ) -> None:
        self.pipelines = pipelines
        self._maintenance_settings = maintenance or MaintenanceSettings()
        self._maintenance: Maintenance | None = None
        self._written: set[str] = set()
        self.options = options
        self.folder = folder
        self._spark: SparkSession | None = None
        self._owns_spark = False
        self._next_status = 0.0
        self._next_request = 0.0
        self._next_look = 0.0
        self._failure: FlowFailed | LeaseLost | None = None
        self.metrics: MetricsEndpoint | None = None
        self._metrics_log: MetricsLog | None = None
        self._link = AdminLink({**options.client, "bootstrap.servers": options.bootstrap})

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "the run has no session yet"
        return self._spark

    def open(self, spark: SparkSession | None) -> None:
        """Start every query. If one fails to start, stop the others."""
        trigger = trigger_arguments(self.options.trigger)
        place = Place(
            self.options.bootstrap,
            self.options.data.rstrip("/"),
            self.options.client,
            self.options.max_offsets_per_trigger,
            self.options.checkpoints,
        )
        self._write_status(force=True)
        self._spark, self._owns_spark = spark or new_session(self.options), spark is None
        if self.folder.files.store.is_local:
            check_same_place(self.folder, Files(self._spark, self.options.data).root)
        self._find_checkpoints(place)
        wanted = wanted_partitions(self.options)
        if wanted is not None and spark is not None:
            self._spark = session_with(spark, wanted)
        jvm_pid = int(self._spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        for running in self.pipelines:
            running.status.jvm_pid = jvm_pid
        self._write_status(force=True)  # before a query runs: after a kill the next run waits for this JVM
        store = Store.of(self._spark, f"{place.data}/tables")
        refuse_old_tables(store, place.data)
        if self.options.metrics_port is not None:
            self.metrics = MetricsEndpoint(
                self.flow_metrics, self.options.metrics_host, self.options.metrics_port
            )
            self.metrics.open()
        self._metrics_log = metrics_log(self._spark, place)
        for running in self.pipelines:
            context = in_session(self._context(running), self._spark, place)
            for flow in running.flows:
                checkpoint = place.checkpoint(running.name, flow.name)
                found = in_checkpoint(Files(self._spark, checkpoint), checkpoint)
                warn_of_other(f"{running.name}/{flow.name}", found, wanted)
            check, log = running.claim.check, self._metrics_log
            running.queries = [
                FlowQuery(flow, context, place, self._link, check, log) for flow in running.flows
            ]
            for query in running.queries:
                self._start(running, query, trigger)
                self._look()  # to start many queries takes minutes
            running.status.state = state.RUNNING
            self._write_status(force=True)
        self._maintenance = Maintenance(store, self._maintenance_settings, self._table_names)
        self._maintenance.start()

    def _find_checkpoints(self, place: Place) -> None:
        """Note where the checkpoints are. Raises ConfigError if Spark cannot write there, or they moved."""
        root = checkpoint_folder(self.spark, place)
        for running in self.pipelines:
            before = running.claim.before
            if before is not None:
                refuse_moved(running.name, before.checkpoints, root)
            running.status.checkpoints = root.root if place.checkpoints else ""

    def _table_names(self) -> list[str]:
        """The tables that this run has written, whatever sink or step did it, and the one of its metrics."""
        return sorted({*self._written, batch_metrics.TABLE})

    def _start(self, running: RunningPipeline, query: FlowQuery, trigger: Mapping[str, str | bool]) -> None:
        try:
            for _ in range(START_ATTEMPTS):
                query.start(trigger)
                if query.wait_for_source(SOURCE_SECONDS):
                    break
        except Exception as error:
            failure = self._failed(running, query, error)
            running.status.state, running.status.error = state.FAILED, str(failure)
            raise failure from error

    def _failed(self, running: RunningPipeline, query: FlowQuery, error: Exception) -> FlowFailed:
        """The error of a flow for people. A store may repeat a credential in its answer."""
        return flow_failed(running.name, query.flow.name, error, self.folder.files.store.without_secrets)

    def _context(self, running: RunningPipeline) -> Context:
        from tidelog.spark.tables import Tables

        return Context(
            spark=self.spark,
            settings=running.settings,
            tables=Tables(self.spark, f"{self.options.data.rstrip('/')}/tables", self._written),
            pipeline=running.name,
            bootstrap=self.options.bootstrap,
            client=self.options.client,
        )

    def _look(self) -> None:
        for running in self.pipelines:
            for query in running.queries:
                query.look()

    def turn(self) -> bool:
        """Check all pipelines once, without waiting; False when all have ended.

        Raises `FlowFailed` when a flow failed and the others have been stopped, `LeaseLost` when another
        driver took a pipeline over.
        """
        asks, ended = self._asks_for_stop(), True
        due = time.monotonic() >= self._next_look
        if due:
            self._next_look = time.monotonic() + LOOK_SECONDS
        for running in self.pipelines:
            if asks and running.stop_deadline is None and self.folder.stop_requested(running.name):
                self.stop(running.name)
            # Before failures are looked for: a flow that fails later in this turn is seen in the next one.
            has_ended = running.ended
            ended = ended and has_ended
            for query in running.queries:
                if due or query.ended:
                    query.look()
            self._see_failure(running)
            self._finish(running, has_ended)
        self._write_status()
        if self._metrics_log is not None:
            self._metrics_log.flush()
        if not ended:
            return True
        self._write_status(force=True)
        if self._failure is not None:
            raise self._failure
        return False

    def _asks_for_stop(self) -> bool:
        """Whether it is time to look for requests to stop. On a remote store each look takes a while."""
        now = time.monotonic()
        if now < self._next_request:
            return False
        self._next_request = now + self.folder.poll_seconds
        return True

    def _see_failure(self, running: RunningPipeline) -> None:
        if running.status.error is not None:
            return
        if running.claim.lost is not None:
            running.status.state, running.status.error = state.FAILED, str(running.claim.lost)
            self._failure = self._failure or running.claim.lost
            for query in running.queries:
                query.stop_now()
            self.stop()
            return
        for query in running.queries:
            error = query.failure() if query.ended else None
            if error is not None:
                failure = self._failed(running, query, error)
                running.status.state, running.status.error = state.FAILED, str(failure)
                self._failure = self._failure or failure
                self.stop()
                return

    def _finish(self, running: RunningPipeline, has_ended: bool) -> None:
        """Bring a stopping pipeline closer to its end, and mark a pipeline that ended by itself."""
        deadline = running.stop_deadline
        if deadline is not None:
            late = time.monotonic() >= deadline
            for query in running.queries:
                if not query.stopped_between_batches() and late:
                    running.stopped_cleanly = False
                    query.stop_now()
        if has_ended and running.status.state not in state.ENDED:
            running.status.state = state.STOPPED
            if running.claim.lost is None:
                self.folder.forget_request(running.name)

    def stop(self, pipeline: str | None = None) -> None:
        """Request that one pipeline or all end after their micro-batch. `turn` carries it out."""
        for running in self.pipelines:
            if pipeline in (None, running.name) and running.stop_deadline is None:
                running.stop_deadline = time.monotonic() + self.options.stop_seconds
                if running.status.state not in state.ENDED:
                    running.status.state = state.STOPPING
                for query in running.queries:
                    query.close_gate()

    def wait(self, *, each_turn: Callable[[Running], None] | None = None) -> Outcome:
        """Wait until all pipelines have ended."""
        try:
            with spark_alive(self.options.data):
                while self.turn():
                    if each_turn is not None:
                        each_turn(self)
                    time.sleep(TURN_SECONDS)
        except SparkDied as error:
            for running in self.pipelines:
                running.status.state, running.status.error = state.FAILED, str(error)
            raise
        if each_turn is not None:
            each_turn(self)
        if self._maintenance is not None and all(each.stop_deadline is None for each in self.pipelines):
            self._maintenance.round()  # runs that end by themselves may be too short for the thread
        return self.outcome()

    def outcome(self) -> Outcome:
        for running in self.pipelines:
            running.status.flows = self.flows(running)
        return Outcome(
            {running.name: running.status for running in self.pipelines},
            all(running.stopped_cleanly for running in self.pipelines),
            self.cut_off,
        )

    @property
    def cut_off(self) -> tuple[str, ...]:
        """The micro-batches that a stop did not wait for."""
        return tuple(
            query.cut_off
            for running in self.pipelines
            for query in running.queries
            if query.cut_off is not None
        )

    def flows(self, running: RunningPipeline) -> dict[str, FlowStatus]:
        """The status of a pipeline's flows by name."""
        return {query.flow.name: query.progress.flow for query in running.queries}

    def flow_metrics(self) -> list[FlowMetrics]:
        """The numbers of all flows, for Prometheus."""
        return [
            FlowMetrics(running.name, query.flow.name, query.progress.flow, query.totals)
            for running in self.pipelines
            for query in running.queries
        ]

    def _write_status(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if force or now >= self._next_status:
            self._next_status = now + max(STATUS_SECONDS, 2 * self.folder.poll_seconds)
            for running in self.pipelines:
                running.status.flows = self.flows(running)
                if running.claim.lost is None:  # else it is the status of the driver that took over
                    self.folder.write(running.status)

    def close(self) -> None:
        """End everything now. For a clean end call `stop()` and `wait()` first."""
        try:
            if self._maintenance is not None:
                self._maintenance.close()
            for running in self.pipelines:
                for query in running.queries:
                    query.stop_now()
                if running.status.state not in state.ENDED:
                    running.status.state = state.STOPPED
            self._write_status(force=True)
            if self._metrics_log is not None:
                with suppress(Exception):  # Spark may be gone; the next run writes the metrics
                    self._metrics_log.flush(everything=True)
            if self.metrics is not None:
                self.metrics.close()
            if self._spark is not None and self._owns_spark:
                with suppress(Exception):  # it may be gone already
                    self._spark.stop()
        finally:
            self._link.close()
            for running in self.pipelines:
                running.claim.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def metrics_log(spark: SparkSession, place: Place) -> MetricsLog:
    """The log of the metrics of a data folder."""
    from tidelog.spark.tables.store import Store

    store = Store.of(spark, place.tables).below(batch_metrics.TABLE)
    waiting = MetricsFiles(Store.of(spark, f"{place.data}/metrics"))
    return MetricsLog(waiting, MetricsTable(store.uri, store.options))


def start(
    names: Iterable[str | Pipeline], options: Options | None = None, *, spark: SparkSession | None = None
) -> Running:
    """Start pipelines, given as names, files, modules or declarations."""
    options = options or Options()
    if spark is None:
        check_spark()
    pipelines = find_all(names)
    given = {name: value for name, value in options.settings.items() if name != SETTING}
    maintenance, given = from_settings(given)
    settings = resolve(pipelines, given)
    trigger_arguments(options.trigger)
    wanted_partitions(options)
    check_deploy_mode(options)
    flows = {pipeline.name: pipeline.flows(settings[pipeline.name]) for pipeline in pipelines}
    for pipeline in pipelines:
        check_flows(pipeline, flows[pipeline.name])
    if state.local_path(options.data) is not None:  # in time, before Spark starts
        data = options.data.rstrip("/")
        refuse_old_tables(Store.of(None, f"{data}/tables"), data)
    folder = state_folder(options, spark)
    claimed: list[RunningPipeline] = []
    try:
        for pipeline in pipelines:
            claim = folder.claim(pipeline.name)
            status = state.this_process(pipeline.name)
            status.bootstrap, status.data = options.bootstrap, options.data
            status.trigger = options.trigger
            claimed.append(
                RunningPipeline(pipeline, settings[pipeline.name], flows[pipeline.name], claim, status)
            )
        for running in claimed:  # before the status is written, which is the only trace of that process
            wait_for_old_jvm(running.claim.before)
        prepare_topics(
            [flow for found in flows.values() for flow in found],
            options.bootstrap,
            options.client,
            create_sources=options.create_topics,
        )
    except BaseException:
        for running in claimed:
            running.claim.close()
        raise
    run = Running(claimed, options, folder, maintenance)
    try:
        run.open(spark)
    except BaseException:
        run.close()
        raise
    return run


def run(
    names: Iterable[str | Pipeline] | str,
    *,
    bootstrap: str = DEFAULT_BOOTSTRAP,
    data: str = DEFAULT_DATA,
    master: str | None = None,
    trigger: str = DEFAULT_TRIGGER,
    settings: Mapping[str, object] | None = None,
    client: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    create_topics: bool = False,
    each_turn: Callable[[Running], None] | None = None,
) -> Outcome:
    """Run pipelines to their end. With `trigger="available-now"` that is the current end of the log."""
    options = Options(
        bootstrap, data, master, trigger, settings or {}, client or {}, create_topics=create_topics
    )
    with start([names] if isinstance(names, str) else names, options, spark=spark) as running:
        return running.wait(each_turn=each_turn)


def state_folder(options: Options, spark: SparkSession | None) -> StateFolder:
    """The status, leases and requests of a run, with Spark's credentials for the store of its data."""
    from tidelog.spark.tables.store import Store

    store = store_of(options.data, options.spark_conf) if spark is None else Store.of(spark, options.data)
    return StateFolder(options.data, store)
