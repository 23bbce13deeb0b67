"""`tidelog consumer-groups`: groups, their members and offsets, as kafka-consumer-groups.

As in Kafka's tool, wrong flags end with 1. If a broker refuses a command, the tool prints `Error: ...` and
ends with 0, or with 1 if --output is json. Unlike Kafka's tool it ends with 1 if no broker answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tidelog.cli.consumer_groups_describe import (
    groups_as_json,
    print_groups,
    print_members,
    print_offsets,
    print_states,
)
from tidelog.cli.consumer_groups_reset import ResetSpec, reset_offsets, topic_partitions
from tidelog.cli.flags import (
    KafkaStyleCommand,
    WrongUsage,
    bootstrap_server,
    brief_text,
    brief_words,
    file_words,
    switch,
    value_or_not,
    valued,
)
from tidelog.cli.name_completion import complete_groups, complete_topics
from tidelog.cli.output import connected_admin, output_option, print_json
from tidelog.errors import (
    GroupAuthorizationFailed,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InconsistentGroupProtocol,
    InvalidGroupId,
    KafkaError,
    NetworkException,
    NonEmptyGroup,
    RequestTimedOut,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    error_name,
)
from tidelog.partitions import PartitionKey

if TYPE_CHECKING:
    from tidelog.clients.admin import Admin

DEFAULT_TIMEOUT_MS = 30_000
ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets", "validate_regex")
SCENARIOS = (
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
    "to_earliest",
    "to_latest",
    "to_current",
    "from_file",
    "from_group",
)
STATES = (
    "CompletingRebalance",
    "Reconciling",
    "Stable",
    "Assigning",
    "Empty",
    "PreparingRebalance",
    "Dead",
)
KINDS = ("Classic", "Consumer")
UNASSIGNED_PARTITION = -1

# The actions of each flag; a flag that is missing here goes with all actions.
ONLY_WITH: dict[str, tuple[str, ...]] = {
    "members": ("describe",),
    "offsets": ("describe",),
    "verbose": ("describe",),
    "state": ("describe", "list"),
    "type": ("list",),
    "group": ("describe", "delete", "reset_offsets", "delete_offsets", "validate_regex"),
    "topic": ("reset_offsets", "delete_offsets", "validate_regex"),
}


@dataclass(slots=True, frozen=True)
class Options:
    """The flags of one call; a flag that is not given is false, None or empty."""

    bootstrap_server: str
    command_config: str | None
    timeout: int | None
    list: bool
    describe: bool
    delete: bool
    reset_offsets: bool
    delete_offsets: bool
    validate_regex: str | None
    group: tuple[str, ...]
    all_groups: bool
    topic: tuple[str, ...]
    all_topics: bool
    members: bool
    offsets: bool
    state: str | None
    type: str | None
    verbose: bool
    dry_run: bool
    execute: bool
    export: bool
    to_offset: int | None
    shift_by: int | None
    to_datetime: str | None
    by_duration: str | None
    to_earliest: bool
    to_latest: bool
    to_current: bool
    from_file: str | None
    from_group: str | None
    output: str

    def given(self, name: str) -> bool:
        return getattr(self, name) not in (None, False, ())

    def reset(self) -> ResetSpec:
        return ResetSpec(
            topics=self.topic,
            all_topics=self.all_topics,
            execute=self.execute,
            export=self.export,
            one_group=len(self.group) == 1,
            to_offset=self.to_offset,
            shift_by=self.shift_by,
            to_datetime=self.to_datetime,
            by_duration=self.by_duration,
            to_earliest=self.to_earliest,
            to_latest=self.to_latest,
            to_current=self.to_current,
            from_file=self.from_file,
            from_group=self.from_group,
        )


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@valued("--timeout", "MS", "The time-out of each request (default 30000).", int)
@switch("--list", "Print the names of the groups.")
@switch("--describe", "Print the offsets and lags of groups, or their members or states.")
@switch("--delete", "Delete groups without members, and their offsets.")
@switch("--reset-offsets", "Print new offsets of groups without members; with --execute, set them.")
@switch("--delete-offsets", "Delete a group's offsets of topics without subscribed members.")
@valued("--validate-regex", "PATTERN", "Print whether a pattern for subscriptions is valid RE2.")
@click.option(
    "--group",
    metavar="ID",
    multiple=True,
    shell_complete=complete_groups,
    help="A group; may be repeated.",
)
@switch("--all-groups", "All consumer groups.")
@click.option(
    "--topic",
    metavar="NAME[:P,...]",
    multiple=True,
    shell_complete=complete_topics,
    help="A topic, or some partitions of it.",
)
@switch("--all-topics", "All topics with offsets of the group.")
@switch("--members", "Describe the members.")
@switch("--offsets", "Describe the offsets; the default.")
@value_or_not("--state", "[STATE,...]", "Describe or list with the states; --list only these states.")
@value_or_not("--type", "[TYPE,...]", "List with the types, classic or consumer; only these types.")
@switch("--verbose", "Describe more: epochs and assignments.")
@switch("--dry-run", "Change nothing; the default of --reset-offsets.")
@switch("--execute", "Set the offsets.")
@switch("--export", "Print the new offsets as CSV for --from-file.")
@valued("--to-offset", "N", "Reset to an offset.", int)
@valued("--shift-by", "N", "Reset by N records, backwards if N is negative.", int)
@valued("--to-datetime", "TIME", "Reset to the first record from a time on, 2025-01-31T23:59:59.000.")
@valued("--by-duration", "DURATION", "Reset to the first record within a duration before now, P1DT2H3M4S.")
@switch("--to-earliest", "Reset to the first records.")
@switch("--to-latest", "Reset to the ends of the partitions.")
@switch("--to-current", "Reset to the committed offsets.")
@valued("--from-file", "FILE", "Reset to the offsets of a CSV file: [group,]topic,partition,offset.")
@valued("--from-group", "ID", "Reset to the committed offsets of another group: a clone of it.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def consumer_groups(ctx: click.Context, /, **flags: object) -> None:
    """List, describe and delete consumer groups, and reset or delete their offsets."""
    options = Options(**flags)  # type: ignore[arg-type]  # click has made values of the declared types
    action = check(options, ctx)
    if action == "validate_regex":
        validate_regex(options.validate_regex or "")
        return
    timeout_ms = DEFAULT_TIMEOUT_MS if options.timeout is None else options.timeout
    try:
        with connected_admin(
            options.bootstrap_server, options.command_config, timeout_ms=timeout_ms
        ) as admin:
            run(action, admin, options)
    except (KafkaError, OSError, ValueError) as error:
        text = brief_text(error) if isinstance(error, KafkaError) else file_words(error)
        if options.output == "json":
            click.echo(f"Error: {text}", err=True)
            ctx.exit(1)
        fail(f"Executing consumer group command failed due to {text}")
        if isinstance(error, NetworkException | RequestTimedOut):
            ctx.exit(1)


def check(options: Options, ctx: click.Context) -> str:
    """The action of the flags. Raises WrongUsage if it is not exactly one, or a flag does not go with it."""
    actions = [action for action in ACTIONS if options.given(action)]
    if len(actions) != 1:
        raise WrongUsage(f"expected exactly one of {', '.join(map(flag, ACTIONS))}", ctx)
    (action,) = actions
    if options.output == "json" and action not in ("list", "describe"):
        raise WrongUsage(f"--output json goes with --list and --describe, not with {flag(action)}", ctx)
    for name, fitting in ONLY_WITH.items():
        if options.given(name) and action not in fitting:
            raise WrongUsage(f"{flag(name)} does not go with {flag(action)}", ctx)
    if options.group and options.all_groups:
        raise WrongUsage("--group does not go with --all-groups", ctx)
    if options.timeout is not None and options.timeout <= 0:
        raise WrongUsage(f"--timeout is {options.timeout}; it must be greater than 0", ctx)
    if action in ("describe", "delete", "reset_offsets") and not (options.group or options.all_groups):
        raise WrongUsage(f"{flag(action)} needs --group or --all-groups", ctx)
    if action == "describe":
        check_describe(options, ctx)
    elif action == "list":
        chosen("--state", options.state, STATES, ctx)
        chosen("--type", options.type, KINDS, ctx)
    elif action == "delete_offsets" and not (len(options.group) == 1 and options.topic):
        raise WrongUsage("--delete-offsets needs one --group, and --topic", ctx)
    elif action == "reset_offsets":
        check_reset(options, ctx)
    return action


def check_describe(options: Options, ctx: click.Context) -> None:
    if sum(map(options.given, ("members", "offsets", "state"))) > 1:
        raise WrongUsage("--describe takes at most one of --members, --offsets and --state", ctx)
    if options.state:
        raise WrongUsage(f"--state takes no value with --describe; it was given {options.state!r}", ctx)


def check_reset(options: Options, ctx: click.Context) -> None:
    if options.dry_run and options.execute:
        raise WrongUsage("--execute does not go with --dry-run", ctx)
    if not (options.dry_run or options.execute):
        click.echo(
            "WARN: Without --execute nothing is changed. Add --dry-run to say so: "
            "Kafka's tool requires one of the two from version 5.0 on.",
            err=True,
        )
    scenarios = [flag(name) for name in SCENARIOS if options.given(name)]
    if len(scenarios) != 1:
        raise WrongUsage(f"--reset-offsets needs exactly one of {', '.join(map(flag, SCENARIOS))}", ctx)
    if not (options.topic or options.all_topics or options.from_file):
        raise WrongUsage("--reset-offsets needs --all-topics or --topic", ctx)
    try:
        options.reset().check()
    except ValueError as error:
        raise WrongUsage(str(error), ctx) from None


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def chosen(name: str, text: str | None, known: tuple[str, ...], ctx: click.Context) -> list[str]:
    """The values of a list, in the broker's spelling."""
    if not text:
        return []
    spelled = {value.lower(): value for value in known}
    wanted = [value.strip().lower() for value in text.split(",")]
    if not spelled.keys() >= set(wanted):
        raise WrongUsage(f"{name} is {text!r}; it may list {', '.join(known)}", ctx)
    return [spelled[value] for value in wanted]


def validate_regex(pattern: str) -> None:
    """Print whether brokers accept a pattern in subscriptions; both use the engine RE2."""
    import re2

    quiet = re2.Options()
    quiet.log_errors = False
    try:
        re2.compile(pattern, quiet)
    except re2.error as error:
        (reason,) = error.args
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        click.echo(f"The regular expression `{pattern}` is invalid: {text}.")
    else:
        click.echo(f"The regular expression `{pattern}` is valid.")


def run(action: str, admin: Admin, options: Options) -> None:
    if action == "list":
        list_groups(admin, options)
        return
    ids = consumer_group_ids(admin) if options.all_groups else list(options.group)
    try:
        if action == "describe":
            describe(admin, ids, options)
        elif action == "delete":
            delete_groups(admin, ids)
        elif action == "reset_offsets":
            reset_offsets(admin, ids, options.reset())
        else:
            delete_offsets(admin, ids[0], options.topic)
    except InconsistentGroupProtocol as error:  # Kafka's tool prints no class name for this error
        raise ValueError(str(error)) from None


def consumer_group_ids(admin: Admin) -> list[str]:
    return [group.group_id for group in admin.list_consumer_groups()]


def list_groups(admin: Admin, options: Options) -> None:
    if options.output != "json" and options.state is None and options.type is None:
        for group_id in consumer_group_ids(admin):
            click.echo(group_id)
        return
    ctx = click.get_current_context()
    found = admin.list_consumer_groups(
        states=chosen("--state", options.state, STATES, ctx),
        types=[kind.lower() for kind in chosen("--type", options.type, KINDS, ctx)],
    )
    if options.output == "json":
        print_json([{"group": group.group_id, "type": group.type, "state": group.state} for group in found])
        return
    print_groups(found, with_kind=options.type is not None, with_state=options.state is not None)


def describe(admin: Admin, ids: list[str], options: Options) -> None:
    found = admin.describe_consumer_groups(ids, partial=True)
    for group_id, error in sorted(found.errors.items()):
        raise GroupIdNotFound(f"Group {group_id} not found.") if isinstance(error, GroupIdNotFound) else error
    described = [description for _, description in sorted(found.items())]
    if options.output == "json":
        print_json(groups_as_json(admin, described))
    elif options.members:
        print_members(described, options.verbose)
    elif options.state is not None:
        print_states(described, options.verbose)
    else:
        print_offsets(admin, described, options.verbose)


def delete_groups(admin: Admin, ids: list[str]) -> None:
    results = admin.delete_consumer_groups(ids, partial=True)
    deleted = ", ".join(f"'{group_id}'" for group_id in results)
    if not results.errors:
        click.echo(f"Deletion of requested consumer groups ({deleted}) was successful.")
        return
    fail("Deletion of some consumer groups failed:")
    for group_id, error in results.errors.items():
        click.echo(f"* Group '{group_id}' could not be deleted due to: {brief_text(error)}")
    if deleted:
        click.echo(f"\nThese consumer groups were deleted successfully: {deleted}")


def delete_offsets(admin: Admin, group_id: str, topics: tuple[str, ...]) -> None:
    results: dict[PartitionKey, KafkaError | None] = {}
    wanted: list[PartitionKey] = []
    for topic in topics:
        try:
            wanted += topic_partitions(admin, topic)
        except UnknownTopicOrPartition:
            results[topic, UNASSIGNED_PARTITION] = UnknownTopicOrPartition()
    try:
        refused = admin.delete_consumer_group_offsets(group_id, wanted, partial=True).errors
    except KafkaError as error:
        refused = dict.fromkeys(wanted, error)
    results |= {partition: refused.get(partition) for partition in wanted}
    print_outcome(group_id, next(iter(refused.values()), None))
    width = max(15, *(len(topic) for topic, _ in results))
    lines = [f"{'TOPIC':<{width}} {'PARTITION':<10} {'STATUS':<15}"]
    for (topic, index), failure in sorted(results.items(), key=lambda item: f"{item[0][0]}{item[0][1]}"):
        status = "Successful" if failure is None else f"Error: {brief_text(failure)}"
        lines.append(f"{topic:<{width}} {index if index >= 0 else '-':<10} {status:<15}")
    click.echo("\n" + "\n".join(lines))


def print_outcome(group_id: str, refusal: KafkaError | None) -> None:
    if refusal is None:
        click.echo(f"Request succeeded for deleting offsets from group {group_id}.")
    elif isinstance(refusal, InvalidGroupId | GroupIdNotFound | GroupAuthorizationFailed | NonEmptyGroup):
        fail(brief_words(refusal))
    elif isinstance(refusal, GroupSubscribedToTopic | TopicAuthorizationFailed | UnknownTopicOrPartition):
        fail("Encountered some partition-level error, see the follow-up details.")
    else:
        fail(f"Encountered some unknown error: {error_name(refusal.code)}")


def fail(text: str) -> None:
    click.echo(f"\nError: {text}")
