"""`tidelog verifiable-producer`: writes numbers, and prints a line of JSON for each.

It has the flags and the output of kafka-verifiable-producer.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import WrongUsage, bootstrap_server, exception_name, not_both, valued
from tidelog.cli.output import Pace, Signals, failing, print_json, settings_from, tool_command
from tidelog.errors import KafkaError

if TYPE_CHECKING:
    from tidelog.clients.producer.blocking import Producer
    from tidelog.clients.producer.core import DeliveryCallback
    from tidelog.records.loops import RecordMetadata


@tool_command("verifiable-producer")
@bootstrap_server
@valued("--topic", "NAME", "The topic to write to; required.")
@click.option(
    "--max-messages", metavar="N", type=int, default=-1, help="How many records; -1 until a signal."
)
@click.option(
    "--throughput", metavar="N", type=int, default=-1, help="At most about N a second; -1 for no limit."
)
@click.option("--acks", type=click.Choice(["0", "1", "-1"]), default="-1", help="acks of the producer.")
@valued("--producer.config", "FILE", "As --command-config.")
@valued("--command-config", "FILE", "A properties file with settings of the producer.")
@valued("--message-create-time", "MS", "The timestamp of the first record; it advances with the clock.", int)
@valued("--value-prefix", "N", "Values are N.NUMBER instead of NUMBER.", int)
@valued("--repeating-keys", "N", "Keys are 0 to N - 1, again and again.", int)
@click.pass_context
def verifiable_producer(
    ctx: click.Context,
    bootstrap_server: str,
    topic: str | None,
    max_messages: int,
    throughput: int,
    acks: str,
    producer_config: str | None,
    command_config: str | None,
    message_create_time: int | None,
    value_prefix: int | None,
    repeating_keys: int | None,
) -> None:
    """Write numbers to a topic, and print the result of each as a line of JSON."""
    if topic is None:
        raise WrongUsage("--topic must be specified", ctx)
    not_both(ctx, "--command-config", command_config, "--producer.config", producer_config)
    if repeating_keys is not None and repeating_keys < 1:
        raise WrongUsage(f"--repeating-keys is {repeating_keys}; it must be greater than 0", ctx)
    with failing():
        settings: dict[str, object] = {"acks": acks, "retries": 0}
        settings |= settings_from(command_config or producer_config, bootstrap_servers=bootstrap_server)
        run = Run(topic, max_messages, throughput, value_prefix, repeating_keys, message_create_time)
        code = run.run(settings)
    ctx.exit(code)


class Run:
    def __init__(
        self,
        topic: str,
        max_messages: int,
        throughput: int,
        value_prefix: int | None,
        repeating_keys: int | None,
        create_time: int | None,
    ) -> None:
        self.topic = topic
        self.max_messages = max_messages
        self.throughput = throughput
        self.value_prefix = value_prefix
        self.repeating_keys = repeating_keys
        self.create_time = create_time
        self.sent = 0
        self.acked = 0
        self._producer: Producer | None = None
        self._stop = threading.Event()
        self._unread = False
        self._printing = threading.Lock()

    def run(self, settings: dict[str, object]) -> int:
        """Write until a signal or the last number; returns the exit code."""
        from tidelog.clients.errors import ClientClosedException
        from tidelog.clients.producer.blocking import Producer

        with Signals(self.end) as signals, Producer(settings) as producer:
            self._producer = producer
            started = time.time()
            self.emit("startup_complete")
            pace = Pace(self.throughput, self._stop)
            while not self._stop.is_set() and (self.max_messages < 0 or self.sent < self.max_messages):
                key, value = self.key(self.sent), self.value(self.sent)
                self.sent += 1
                when = self.create_time
                if when is not None:
                    self.create_time = when + round((time.time() - started) * 1000)
                try:
                    producer.send(
                        self.topic, value, key=key, timestamp_ms=when, callback=self.delivered(key, value)
                    )
                except KafkaError as error:
                    if self._stop.is_set() and isinstance(error, ClientClosedException):
                        self.sent -= 1
                        break
                    self.failed(key, value, error)
                pace.wait()
        if self._unread:
            raise BrokenPipeError
        self.emit("shutdown_complete")
        seconds = max(1e-9, time.time() - started)
        self.emit(
            "tool_data",
            sent=self.sent,
            acked=self.acked,
            target_throughput=self.throughput,
            avg_throughput=self.acked / seconds,
        )
        return signals.exit_code or int(self.acked < self.sent)

    def end(self) -> None:
        """Write the waiting records and end; a second call ends at once."""
        timeout = 0.0 if self._stop.is_set() else None
        self._stop.set()
        if self._producer is not None:
            # In another thread: this thread may wait in `send` for a broker, and closing ends the wait.
            threading.Thread(target=self._producer.close, args=(timeout,), daemon=True).start()

    def key(self, number: int) -> str | None:
        return None if self.repeating_keys is None else str(number % self.repeating_keys)

    def value(self, number: int) -> str:
        return str(number) if self.value_prefix is None else f"{self.value_prefix}.{number}"

    def delivered(self, key: str | None, value: str) -> DeliveryCallback:
        def delivered(metadata: RecordMetadata, error: BaseException | None) -> None:
            if error is not None:
                self.failed(key, value, error)
                return
            self.acked += 1
            self.emit(
                "producer_send_success",
                key=key,
                value=value,
                offset=metadata.offset,
                topic=metadata.topic,
                partition=metadata.partition,
            )

        return delivered

    def failed(self, key: str | None, value: str, error: BaseException) -> None:
        kind = exception_name(error) if isinstance(error, KafkaError) else type(error).__name__
        self.emit(
            "producer_send_error",
            key=key,
            value=value,
            topic=self.topic,
            exception=f"class {kind}",
            message=str(error),
        )

    def emit(self, name: str, **fields: object) -> None:
        event = {"timestamp": round(time.time() * 1000), "name": name, **fields}
        with self._printing:
            if self._unread:
                return
            try:
                print_json(event)
            except BrokenPipeError:  # mostly on the producer's thread, which must not end
                self._unread = True
                self._stop.set()
