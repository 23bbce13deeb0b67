"""`tidelog dump-log`: prints the files of a log folder, with the flags and output of kafka-dump-log."""

from __future__ import annotations

import click

from tidelog.cli.dump_decoders import (
    RecordDecoder,
    offsets_decoder,
    plain,
    share_group_state_decoder,
    transactions_decoder,
    value_decoder,
)
from tidelog.cli.dump_files import Choices, Problems, dump_file
from tidelog.cli.flags import KafkaStyleCommand, WrongUsage, switch, valued
from tidelog.errors import KafkaError


@click.command("dump-log", cls=KafkaStyleCommand, context_settings={"help_option_names": ["-h", "--help"]})
@valued("--files", "FILE[,...]", "Log, index and snapshot files; required.")
@switch("--deep-iteration", "Print the records of each batch, too.")
@switch("--print-data-log", "Print keys and values too.")
@switch("--skip-record-metadata", "Print only keys and values of records, and no control records.")
@switch("--index-sanity-check", "Only check whether a start would rebuild an index.")
@switch("--verify-index-only", "Only compare an index with its log.")
@valued("--max-bytes", "N", "Read only the first N bytes of a log.", int)
@valued("--max-message-size", "N", "Ignored: the tool reads batches of any size.", int)
@valued("--key-decoder-class", "NAME", "The decoder of keys: StringDecoder, IntegerDecoder or LongDecoder.")
@valued("--value-decoder-class", "NAME", "The decoder of values, by the same names.")
@switch("--offsets-decoder", "Decode the records of __consumer_offsets.")
@switch("--transaction-log-decoder", "Decode the records of __transaction_state.")
@switch("--share-group-state-decoder", "Decode the records of __share_group_state.")
@switch("--cluster-metadata-decoder", "Not served: the metadata is in a tree, not in a log.")
@switch("--remote-log-metadata-decoder", "Not served: there is no remote storage.")
@click.version_option(package_name="tidelog", message="%(version)s")
@click.pass_context
def dump_log(
    ctx: click.Context,
    /,
    files: str | None,
    deep_iteration: bool,
    print_data_log: bool,
    skip_record_metadata: bool,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_bytes: int | None,
    max_message_size: int | None,
    key_decoder_class: str | None,
    value_decoder_class: str | None,
    offsets_decoder: bool,
    transaction_log_decoder: bool,
    share_group_state_decoder: bool,
    cluster_metadata_decoder: bool,
    remote_log_metadata_decoder: bool,
) -> None:
    """Print log, index, transaction index and producer snapshot files."""
    if not files:
        raise WrongUsage("--files must be specified", ctx)
    if cluster_metadata_decoder or remote_log_metadata_decoder:
        raise WrongUsage("records of cluster metadata and of remote storage are not served here", ctx)
    try:
        decoder = choose_decoder(
            print_data_log,
            key_decoder_class,
            value_decoder_class,
            offsets=offsets_decoder,
            transactions=transaction_log_decoder,
            share_group_state=share_group_state_decoder,
        )
        choices = Choices(
            deep=deep_iteration or decoder is not None,
            decoder=decoder,
            skip_record_metadata=skip_record_metadata,
            index_sanity_check=index_sanity_check,
            verify_index_only=verify_index_only,
            max_bytes=max_bytes,
        )
        dump_all([path.strip() for path in files.split(",") if path.strip()], choices)
    except BrokenPipeError:
        raise
    except OSError as error:
        click.echo(f"cannot read {error.filename}: {error.strerror}", err=True)
        ctx.exit(1)
    except (KafkaError, ValueError) as error:
        click.echo(str(error), err=True)
        ctx.exit(1)


def dump_all(paths: list[str], choices: Choices) -> None:
    problems = Problems()
    for path in paths:
        for line in dump_file(path, choices, problems):
            click.echo(line)
    for line in problems.lines:
        click.echo(line, err=True)


def choose_decoder(
    print_data_log: bool,
    key_class: str | None,
    value_class: str | None,
    *,
    offsets: bool,
    transactions: bool,
    share_group_state: bool,
) -> RecordDecoder | None:
    """The decoder of records; None if their content is not printed."""
    if offsets:
        return offsets_decoder()
    if transactions:
        return transactions_decoder()
    if share_group_state:
        return share_group_state_decoder()
    if print_data_log or key_class or value_class:
        return plain(value_decoder(key_class), value_decoder(value_class))
    return None
