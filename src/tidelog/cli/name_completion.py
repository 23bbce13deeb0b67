"""Names of topics and groups for a shell that completes: asked of the cluster, within a short time.

A cluster that is slow or not there completes nothing: a shell must not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tidelog.clients.admin import Admin

LIMIT_SECONDS = 0.7
Complete = Callable[[click.Context, click.Parameter, str], list["CompletionItem"]]


def completing(list_names: Callable[[Admin], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from threading import Thread

        from click.shell_completion import CompletionItem

        import tidelog.clients.admin.blocking  # noqa: F401  # loading it is not the cluster's time

        found: list[str] = []
        # The client has time-outs of its own; the thread is for what they do not cover.
        asking = Thread(target=lambda: found.extend(ask(ctx, list_names)), daemon=True)
        asking.start()
        asking.join(LIMIT_SECONDS)
        before, comma, start = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in sorted(found) if name.startswith(start)]

    return complete


def ask(ctx: click.Context, list_names: Callable[[Admin], Iterable[str]]) -> list[str]:
    """The names that a shell can complete; none after an error."""
    from tidelog.cli.flags import BOOTSTRAP
    from tidelog.cli.output import open_admin

    try:
        with ctx.scope(cleanup=False):  # a profile's settings are in it
            servers = str(ctx.params.get("bootstrap_server") or BOOTSTRAP)
            file = ctx.params.get("command_config")
            with open_admin(servers, file, timeout_ms=round(LIMIT_SECONDS * 1000)) as admin:
                return [name for name in list_names(admin) if name.isprintable() and " " not in name]
    except Exception:  # whatever it is: nothing is completed
        return []


complete_topics = completing(lambda admin: admin.list_topics())
complete_groups = completing(lambda admin: [group.group_id for group in admin.list_consumer_groups()])
