"""`tidelog consumer-groups`: groups, their members and offsets; flags and output of kafka-consumer-groups.

As in Kafka's tool, wrong flags end with 1, while a command that fails prints `Error: ...` and ends with 0;
with --output json it ends with 1.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    admin_for,
    bootstrap_server,
    error_text,
    error_words,
    switch,
    value_or_not,
    valued,
)
from tidelog.cli.output import output_option, print_json
from tidelog.clients.admin import Admin
from tidelog.clients.admin_groups import GroupAdmin
from tidelog.errors import (
    GroupAuthorizationFailed,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidGroupId,
    KafkaError,
    NonEmptyGroup,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
    error_name,
)
from tidelog.partitions import PartitionKey

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
# Groups that consumers make: offsets that are committed from outside leave the protocol empty.
CONSUMER_PROTOCOLS = ("", "consumer")
UNASSIGNED_PARTITION = -1

# Which flags make sense with which actions; those that are not named here go with all of them.
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
    """The flags of one call; those that were not given are false, None or empty."""

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
        )


@click.command(cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@bootstrap_server
@valued("--command-config", "FILE", "A properties file with settings of the connection.")
@valued("--timeout", "MS", "How long each question may take while groups come and go; 30000.", int)
@switch("--list", "Print the names of the groups.")
@switch("--describe", "Print where groups are and how far behind, or their members or states.")
@switch("--delete", "Delete groups without members, with their offsets.")
@switch("--reset-offsets", "Say, and with --execute set, where groups without members read on.")
@switch("--delete-offsets", "Forget a group's offsets of topics that it does not read now.")
@valued("--validate-regex", "PATTERN", "Say whether a pattern for subscriptions is valid RE2.")
@click.option("--group", metavar="ID", multiple=True, help="A group; may be repeated.")
@switch("--all-groups", "All consumer groups.")
@click.option("--topic", metavar="NAME[:P,...]", multiple=True, help="A topic, or some partitions of it.")
@switch("--all-topics", "All topics that the group has offsets of.")
@switch("--members", "Describe the members.")
@switch("--offsets", "Describe the offsets; the default.")
@value_or_not("--state", "[STATE,...]", "Describe or list with the states; --list with some states alone.")
@value_or_not("--type", "[TYPE,...]", "List with the types, classic or consumer; some types alone.")
@switch("--verbose", "Describe more: epochs and assignments.")
@switch("--dry-run", "Change nothing; the default of --reset-offsets.")
@switch("--execute", "Set the offsets.")
@switch("--export", "Print the new offsets as CSV, which --from-file takes.")
@valued("--to-offset", "N", "Reset to an offset.", int)
@valued("--shift-by", "N", "Reset to so many records later, or earlier where negative.", int)
@valued("--to-datetime", "TIME", "Reset to the first record of a time, 2025-01-31T23:59:59.000.")
@valued("--by-duration", "DURATION", "Reset to the first record since so long ago, P1DT2H3M4S.")
@switch("--to-earliest", "Reset to the first records.")
@switch("--to-latest", "Reset behind the last records.")
@switch("--to-current", "Reset to where the group is now.")
@valued("--from-file", "FILE", "Reset to the offsets of a CSV file: [group,]topic,partition,offset.")
@output_option
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def consumer_groups(ctx: click.Context, /, **flags: object) -> None:
    """List, describe and delete consumer groups, and reset or delete their offsets."""
    options = Options(**flags)  # type: ignore[arg-type]  # click made the values as the flags declare them
    action = check(options, ctx)
    if action == "validate_regex":
        validate_regex(options.validate_regex or "")
        return
    timeout = 30.0 if options.timeout is None else options.timeout / 1000
    try:
        with admin_for(options.bootstrap_server, options.command_config, timeout) as admin:
            run(action, admin, GroupAdmin(admin, timeout=timeout), options)
    except (KafkaError, OSError, ValueError) as error:
        text = error_text(error) if isinstance(error, KafkaError) else str(error)
        if options.output == "json":
            click.echo(f"Error: {text}", err=True)
            ctx.exit(1)
        fail(f"Executing consumer group command failed due to {text}")


def check(options: Options, ctx: click.Context) -> str:
    """The one action that was asked for, with flags that go with it; anything else is a usage error."""
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
            "WARN: Nothing is changed without --execute. Say --dry-run where that is meant: "
            "Kafka's tool will ask for either of them from version 5.0 on.",
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
    """The values of a list, spelled as the broker spells them."""
    if not text:
        return []
    spelled = {value.lower(): value for value in known}
    wanted = [value.strip().lower() for value in text.split(",")]
    if not spelled.keys() >= set(wanted):
        raise WrongUsage(f"{name} is {text!r}; it may list {', '.join(known)}", ctx)
    return [spelled[value] for value in wanted]


def validate_regex(pattern: str) -> None:
    """Whether brokers would take a pattern to subscribe with; their engine and that of this check are RE2."""
    import re2

    quiet = re2.Options()
    quiet.log_errors = False
    try:
        re2.compile(pattern, quiet)
    except re2.error as error:
        (reason,) = error.args
        told = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        click.echo(f"The regular expression `{pattern}` is invalid: {told}.")
    else:
        click.echo(f"The regular expression `{pattern}` is valid.")


def run(action: str, admin: Admin, groups: GroupAdmin, options: Options) -> None:
    if action == "list":
        list_groups(groups, options)
        return
    ids = consumer_group_ids(groups) if options.all_groups else list(options.group)
    if action == "describe":
        describe(admin, groups, ids, options)
    elif action == "delete":
        delete_groups(groups, ids)
    elif action == "reset_offsets":
        reset_offsets(admin, groups, ids, options.reset())
    else:
        delete_offsets(admin, groups, ids[0], options.topic)


def consumer_group_ids(groups: GroupAdmin) -> list[str]:
    return [group.group_id for group in groups.list_groups(protocols=CONSUMER_PROTOCOLS)]


def list_groups(groups: GroupAdmin, options: Options) -> None:
    if options.output != "json" and options.state is None and options.type is None:
        for group_id in consumer_group_ids(groups):
            click.echo(group_id)
        return
    ctx = click.get_current_context()
    found = groups.list_groups(
        states=chosen("--state", options.state, STATES, ctx),
        kinds=[kind.lower() for kind in chosen("--type", options.type, KINDS, ctx)],
        protocols=CONSUMER_PROTOCOLS,
    )
    if options.output == "json":
        print_json([{"group": group.group_id, "type": group.kind, "state": group.state} for group in found])
        return
    print_groups(found, with_kind=options.type is not None, with_state=options.state is not None)


def describe(admin: Admin, groups: GroupAdmin, ids: list[str], options: Options) -> None:
    described = []
    for group_id, description in sorted(groups.describe(ids).items()):
        if isinstance(description, KafkaError):
            if isinstance(description, GroupIdNotFound):
                raise GroupIdNotFound(f"Group {group_id} not found.")
            raise description
        if options.output == "json" and description.state == "Dead":  # what older brokers call it
            raise GroupIdNotFound(f"Group {group_id} not found.")
        described.append(description)
    if options.output == "json":
        print_json(groups_as_json(admin, groups, described))
    elif options.members:
        print_members(described, options.verbose)
    elif options.state is not None:
        print_states(described, options.verbose)
    else:
        print_offsets(admin, groups, described, options.verbose)


def delete_groups(groups: GroupAdmin, ids: list[str]) -> None:
    results = groups.delete(ids)
    deleted = ", ".join(f"'{group_id}'" for group_id, error in results.items() if error is None)
    refused = {group_id: error for group_id, error in results.items() if error is not None}
    if not refused:
        click.echo(f"Deletion of requested consumer groups ({deleted}) was successful.")
        return
    fail("Deletion of some consumer groups failed:")
    for group_id, error in refused.items():
        click.echo(f"* Group '{group_id}' could not be deleted due to: {error_text(error)}")
    if deleted:
        click.echo(f"\nThese consumer groups were deleted successfully: {deleted}")


def delete_offsets(admin: Admin, groups: GroupAdmin, group_id: str, topics: tuple[str, ...]) -> None:
    results: dict[PartitionKey, KafkaError | None] = {}
    wanted: list[PartitionKey] = []
    for topic in topics:
        try:
            wanted += topic_partitions(admin, topic)
        except UnknownTopicOrPartition:
            results[topic, UNASSIGNED_PARTITION] = UnknownTopicOrPartition()
    try:
        deleted = groups.delete_offsets(group_id, wanted)
    except KafkaError as refused:
        deleted = dict.fromkeys(wanted, refused)
    refusal = next((error for error in deleted.values() if error is not None), None)
    results |= {partition: deleted.get(partition) for partition in wanted}
    tell_refusal(group_id, refusal)
    width = max(15, *(len(topic) for topic, _ in results))
    lines = [f"{'TOPIC':<{width}} {'PARTITION':<10} {'STATUS':<15}"]
    for (topic, index), error in sorted(results.items(), key=lambda item: f"{item[0][0]}{item[0][1]}"):
        status = "Successful" if error is None else f"Error: {error_text(error)}"
        lines.append(f"{topic:<{width}} {index if index >= 0 else '-':<10} {status:<15}")
    click.echo("\n" + "\n".join(lines))


def tell_refusal(group_id: str, refusal: KafkaError | None) -> None:
    if refusal is None:
        click.echo(f"Request succeeded for deleting offsets from group {group_id}.")
    elif isinstance(refusal, InvalidGroupId | GroupIdNotFound | GroupAuthorizationFailed | NonEmptyGroup):
        fail(error_words(refusal))
    elif isinstance(refusal, GroupSubscribedToTopic | TopicAuthorizationFailed | UnknownTopicOrPartition):
        fail("Encountered some partition-level error, see the follow-up details.")
    else:
        fail(f"Encountered some unknown error: {error_name(refusal.code)}")


def fail(text: str) -> None:
    click.echo(f"\nError: {text}")
