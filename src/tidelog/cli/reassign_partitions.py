"""`tidelog reassign-partitions`: moves partitions to other brokers or log folders, as Kafka's tool.

--generate proposes replicas, --execute starts to move, --verify shows the state and removes throttles when
nothing moves any more, --cancel stops moves, --list shows all moves of the cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    brief_words,
    error_words,
    file_words,
    switch,
    valued,
)
from tidelog.cli.output import INTERRUPTED, connected_admin, output_option, print_json
from tidelog.cli.reassignment_file import (
    Reassignment,
    as_text,
    check_executable,
    joined,
    parse_reassignment,
    parse_topics,
    partition_names,
)
from tidelog.cli.reassignment_progress import await_reassignment
from tidelog.cli.reassignment_states import current_replicas, log_dir_moves, reassignment_states
from tidelog.cli.reassignment_throttles import (
    clear_throttles,
    moves_of,
    set_log_dir_throttle,
    set_throttles,
)
from tidelog.errors import KafkaError, ReplicaNotAvailable
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin, PartitionReassignment, Replica

ACTIONS = ("generate", "execute", "verify", "cancel", "list")
NO_THROTTLE = -1
TIMEOUT_MS = 10_000
RETRY_SECONDS = 0.1

NEEDED: dict[str, tuple[str, ...]] = {
    "generate": ("topics_to_move_json_file", "broker_list"),
    "execute": ("reassignment_json_file",),
    "verify": ("reassignment_json_file",),
    "cancel": ("reassignment_json_file",),
    "list": (),
}
FITTING: dict[str, tuple[str, ...]] = {
    "generate": ("disable_rack_aware", "replication_factor"),
    "execute": (
        "additional",
        "disallow_replication_factor_change",
        "throttle",
        "replica_alter_log_dirs_throttle",
        "timeout",
        "wait",
    ),
    "verify": ("preserve_throttles", "wait"),
    "cancel": ("preserve_throttles", "timeout"),
    "list": (),
}
EVERYWHERE = {"bootstrap_server", "command_config", "output", *ACTIONS, "listing"}

IN_PROGRESS = (
    "Cannot execute because there is an existing partition assignment. "
    "With --additional the new one runs beside it; the flag also changes the throttle of the existing one."
)
VERIFY_LATER = (
    "Warning: You must run --verify periodically, until the reassignment completes, "
    "to ensure the throttle is removed."
)


class CommandFailed(Exception):
    """A failure whose text Kafka's tool prints without `Error: `."""


@dataclass(slots=True, frozen=True)
class Options:
    """The flags of one call; a flag that is not given is false or None."""

    generate: bool
    execute: bool
    verify: bool
    cancel: bool
    listing: bool
    bootstrap_server: str
    command_config: str | None
    reassignment_json_file: str | None
    topics_to_move_json_file: str | None
    broker_list: str | None
    disable_rack_aware: bool
    replication_factor: int | None
    additional: bool
    disallow_replication_factor_change: bool
    throttle: int | None
    replica_alter_log_dirs_throttle: int | None
    timeout: int | None
    preserve_throttles: bool
    wait: bool
    output: str

    def action(self, ctx: click.Context) -> str:
        """The one action of the flags. Raises WrongUsage if there is none, or a flag does not go with it."""
        asked = [action for action in ACTIONS if getattr(self, "listing" if action == "list" else action)]
        if len(asked) != 1:
            raise WrongUsage(f"expected exactly one of {', '.join(f'--{name}' for name in ACTIONS)}", ctx)
        (action,) = asked
        for name in NEEDED[action]:
            if getattr(self, name) is None:
                raise WrongUsage(f"--{action} needs {flag(name)}", ctx)
        for name in self.__slots__:
            fits = name in EVERYWHERE or name in NEEDED[action] or name in FITTING[action]
            if not fits and getattr(self, name) not in (None, False):
                raise WrongUsage(f"{flag(name)} does not go with --{action}", ctx)
        if self.output == "json" and action not in ("list", "verify"):
            raise WrongUsage(f"--output json goes with --list and --verify, not with --{action}", ctx)
        return action

    def reassignment(self) -> Reassignment:
        return parse_reassignment(Path(self.reassignment_json_file or "").read_text())

    @property
    def timeout_ms(self) -> int:
        return TIMEOUT_MS if self.timeout is None else self.timeout


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@switch("--generate", "Print the present replicas of topics, and a proposal that spreads them over brokers.")
@switch("--execute", "Start to move partitions to the replicas of a file.")
@switch("--verify", "Print whether the moves of a file are done, and then remove the throttles.")
@switch("--cancel", "Stop the moves of a file and remove the throttles.")
@click.option("--list", "listing", is_flag=True, help="Print all partitions that are being moved.")
@valued(
    "--reassignment-json-file",
    "FILE",
    'The wanted replicas: {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2],'
    '"log_dirs":["any","/data/b"]}]}; log_dirs may be left out.',
)
@valued(
    "--topics-to-move-json-file",
    "FILE",
    'The topics of --generate: {"topics":[{"topic":"t"}],"version":1}.',
)
@valued("--broker-list", "ID,...", "The brokers of --generate.")
@switch("--disable-rack-aware", "Ignore the racks of the brokers.")
@valued(
    "--replication-factor",
    "N",
    "The replicas of each partition in the proposal of --generate (default as many as now).",
    int,
)
@switch("--additional", "Execute beside the moves that run; changes the throttle of moves that run.")
@switch("--disallow-replication-factor-change", "Refuse a move that changes the number of replicas.")
@valued("--throttle", "BYTES", "Bytes a second that a broker may send and fetch for the moves.", int)
@valued(
    "--replica-alter-log-dirs-throttle",
    "BYTES",
    "Bytes a second that a broker may copy between its log folders.",
    int,
)
@valued("--timeout", "MS", f"How long to try to start moves of log folders (default {TIMEOUT_MS}).", int)
@switch("--preserve-throttles", "Leave the throttles as they are.")
@switch(
    "--wait",
    "Show the progress until all is moved. After --execute it prints the state and removes the throttles.",
)
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def reassign_partitions(ctx: click.Context, /, **flags: object) -> None:
    """Move partitions to other brokers and log folders while they are in use."""
    options = Options(**flags)  # type: ignore[arg-type]  # click has made values of the declared types
    action = options.action(ctx)
    try:
        with connected_admin(options.bootstrap_server, options.command_config) as admin:
            run(action, admin, options)
    except BrokenPipeError:
        raise
    except CommandFailed as error:
        click.echo(f"{error}")
        ctx.exit(1)
    except KafkaError as error:
        click.echo(f"Error: {error_words(error)}", err=options.output != "text")
        ctx.exit(1)
    except (ValueError, OSError) as error:
        click.echo(f"Error: {file_words(error)}", err=options.output != "text")
        ctx.exit(1)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def run(action: str, admin: Admin, options: Options) -> None:
    if action == "generate":
        generate(admin, options)
    elif action == "execute":
        execute(admin, options)
    elif action == "verify":
        verify(admin, options.reassignment(), options)
    elif action == "cancel":
        cancel(admin, options)
    else:
        list_reassignments(admin, options.output)


# --generate


def generate(admin: Admin, options: Options) -> None:
    topics = parse_topics(Path(options.topics_to_move_json_file or "").read_text())
    brokers = parse_brokers(options.broker_list or "")
    described = admin.describe_topics(topics)
    current = {
        (name, partition.partition): partition.replicas
        for name, topic in described.items()
        for partition in topic.partitions
    }
    racks = {node.id: node.rack for node in admin.describe_cluster().nodes if node.id in brokers}
    ignored = [broker for broker in brokers if broker not in racks]
    if ignored:
        click.echo(f"ignored, not alive: {joined(ignored)}", err=True)
    proposed = propose(
        current,
        racks,
        rack_aware=not options.disable_rack_aware,
        replication_factor=options.replication_factor,
    )
    click.echo(f"Current partition replica assignment\n{as_text(current)}\n")
    click.echo(f"Proposed partition reassignment configuration\n{as_text(proposed)}")


def parse_brokers(text: str) -> list[int]:
    try:
        brokers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--broker-list {text!r}: expected broker ids such as 1,2,3") from None
    twice = sorted({broker for broker in brokers if brokers.count(broker) > 1})
    if twice:
        raise ValueError(f"--broker-list names brokers twice: {joined(twice)}")
    return brokers


def propose(
    current: Mapping[PartitionKey, list[int]],
    racks: Mapping[int, str | None],
    *,
    rack_aware: bool,
    replication_factor: int | None = None,
) -> dict[PartitionKey, list[int]]:
    """New replicas for the partitions of each topic.

    Without `replication_factor` topics keep that of partition 0.
    """
    from tidelog.controller.placement import place_partitions

    with_rack = sum(rack is not None for rack in racks.values())
    if rack_aware and 0 < with_rack < len(racks):
        without = joined(broker for broker, rack in sorted(racks.items()) if rack is None)
        raise ValueError(f"brokers without a rack: {without}. Give them one, or use --disable-rack-aware")
    used = racks if rack_aware else dict.fromkeys(racks)
    proposed: dict[PartitionKey, list[int]] = {}
    for topic in sorted({topic for topic, _ in current}):
        indexes = sorted(index for name, index in current if name == topic)
        factor = len(current[topic, indexes[0]]) if replication_factor is None else replication_factor
        placed = place_partitions(used, len(indexes), factor)
        proposed |= {(topic, index): placed[index] for index in indexes}
    return proposed


# --execute


def execute(admin: Admin, options: Options) -> None:
    reassignment = options.reassignment()
    running = admin.list_partition_reassignments()
    if running and not options.additional:
        raise CommandFailed(IN_PROGRESS)
    check_executable(reassignment, [node.id for node in admin.describe_cluster().nodes])
    current = current_replicas(admin, reassignment.partitions)
    click.echo(
        f"Current partition replica assignment\n\n{as_text(current)}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback"
    )
    throttle(admin, options, reassignment, running, current)
    started = admin.alter_partition_reassignments(
        reassignment.replicas,
        allow_replication_factor_change=not options.disallow_replication_factor_change,
        partial=True,
    )
    if started.errors:
        raise CommandFailed("Error reassigning partition(s):\n" + error_lines(started.errors))
    click.echo(
        f"Successfully started partition reassignment{plural(reassignment.replicas)} for "
        f"{partition_names(reassignment.replicas)}"
    )
    move_log_dirs(admin, reassignment.log_dirs, options.timeout_ms / 1000)
    if options.wait:
        verify(admin, reassignment, options)


def throttle(
    admin: Admin,
    options: Options,
    reassignment: Reassignment,
    running: Mapping[PartitionKey, PartitionReassignment],
    current: Mapping[PartitionKey, list[int]],
) -> None:
    between = NO_THROTTLE if options.throttle is None else options.throttle
    given = options.replica_alter_log_dirs_throttle
    inside = NO_THROTTLE if given is None else given
    if between < 0 and inside < 0:
        return
    if not options.wait:
        click.echo(VERIFY_LATER)
    if between >= 0:
        set_throttles(admin, moves_of(running, reassignment.replicas, current), between)
    if inside >= 0:
        set_log_dir_throttle(admin, {replica.broker_id for replica in reassignment.log_dirs}, inside)


def move_log_dirs(admin: Admin, wanted: Mapping[Replica, str], timeout: float) -> None:
    """Start to move replicas to log folders. A new replica exists only when its broker has made it."""
    pending = dict(wanted)
    end = time.monotonic() + timeout
    pause = threading.Event()
    while pending:
        started = admin.alter_replica_log_dirs(pending, partial=True)
        for replica, error in started.errors.items():
            if not isinstance(error, ReplicaNotAvailable):
                raise CommandFailed(
                    f"Error: Failed to alter dir for {replica_name(replica)}: {brief_words(error)}"
                )
        for replica in sorted(started):
            click.echo(
                f"Successfully started moving log directory to {pending.pop(replica)} for replica "
                f"{replica.topic}-{replica.partition} with broker {replica.broker_id} "
            )
        if pending and time.monotonic() >= end:
            names = joined((replica_name(replica) for replica in sorted(pending)), ",")
            raise CommandFailed(
                f"Timed out before log directory move{plural(pending)} could be started for: {names}"
            )
        if pending:
            pause.wait(RETRY_SECONDS)


def replica_name(replica: Replica) -> str:
    return f"{replica.topic}-{replica.partition}-{replica.broker_id}"


def error_lines(errors: Mapping[PartitionKey, KafkaError]) -> str:
    return "\n".join(
        f"{topic}-{index}: {brief_words(error)}" for (topic, index), error in sorted(errors.items())
    )


def plural(things: Iterable[object]) -> str:
    return "" if len(list(things)) == 1 else "s"


# --verify, --cancel, --list


def verify(admin: Admin, reassignment: Reassignment, options: Options) -> None:
    if options.wait:
        await_reassignment(admin, reassignment)
    states = reassignment_states(admin, reassignment)
    if options.output == "json":
        print_json(states.as_json())
    else:
        click.echo("\n".join(states.partition_lines()))
        click.echo("\n".join(states.move_lines()))
    if not states.ongoing and not options.preserve_throttles:
        clear_all_throttles(admin, reassignment, quiet=options.output == "json")


def clear_all_throttles(admin: Admin, reassignment: Reassignment, *, quiet: bool = False) -> None:
    """Remove the throttles of all brokers, and of the topics of the reassignment."""
    live = {node.id for node in admin.describe_cluster().nodes}
    clear_throttles(admin, live | reassignment.brokers, reassignment.topics, quiet=quiet)


def cancel(admin: Admin, options: Options) -> None:
    reassignment = options.reassignment()
    if not reassignment.replicas:
        raise ValueError("the reassignment has no partitions")
    running = admin.list_partition_reassignments(reassignment.partitions)
    active = [partition for partition in reassignment.partitions if partition in running]
    if active:
        cancelled = admin.alter_partition_reassignments(dict.fromkeys(active), partial=True)
        if cancelled.errors:
            raise CommandFailed(
                f"Error cancelling partition reassignment{plural(cancelled.errors)} for:\n"
                + error_lines(cancelled.errors)
            )
        click.echo(
            f"Successfully cancelled partition reassignment{plural(active)} for: {partition_names(active)}"
        )
    else:
        click.echo("None of the specified partition reassignments are active.")
    moving = {
        replica: state.current
        for replica, state in log_dir_moves(admin, reassignment.log_dirs).items()
        if state.current is not None and state.future is not None
    }
    if moving:
        move_log_dirs(admin, moving, options.timeout_ms / 1000)
    else:
        click.echo("None of the specified partition moves are active.")
    if not options.preserve_throttles:
        clear_all_throttles(admin, reassignment)


def list_reassignments(admin: Admin, output: str) -> None:
    running = dict(sorted(admin.list_partition_reassignments().items()))
    if output == "json":
        print_json(
            [
                {
                    "topic": topic,
                    "partition": index,
                    "replicas": found.replicas,
                    "adding": found.adding_replicas,
                    "removing": found.removing_replicas,
                }
                for (topic, index), found in running.items()
            ]
        )
        return
    if not running:
        click.echo("No partition reassignments found.")
        return
    click.echo("Current partition reassignments:")
    for (topic, index), found in running.items():
        click.echo(f"{topic}-{index}: {reassignment_text(found)}")


def reassignment_text(found: PartitionReassignment) -> str:
    parts = [f"replicas: {joined(found.replicas)}."]
    if found.adding_replicas:
        parts.append(f"adding: {joined(found.adding_replicas)}.")
    if found.removing_replicas:
        parts.append(f"removing: {joined(found.removing_replicas)}.")
    return " ".join(parts)
