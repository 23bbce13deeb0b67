"""Starts the console of a broker (`console.listener`): on a thread and a loop of its own."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.config.properties import read_properties
from tidelog.config.values import ConfigError
from tidelog.console.extra import missing_packages
from tidelog.server.run import StartFailed

if TYPE_CHECKING:
    from tidelog.console.clusters import Clusters
    from tidelog.console.records.rules import RecordRules
    from tidelog.console.server import ConsoleServer
    from tidelog.network.server import SocketServer
    from tidelog.server.config.broker import BrokerConfig
    from tidelog.server.services import Services

log = logging.getLogger("tidelog.server")


async def start_console(
    config: BrokerConfig, services: Services, server: SocketServer, address: str
) -> ConsoleServer | None:
    """Start the console if there is a `console.listener`. Raises StartFailed if it cannot start."""
    if config.console_listener is None:
        return None
    missing = missing_packages()
    if missing:
        raise StartFailed(f"console.listener={config.console_listener}: {missing}")
    from tidelog.server.console_view import ConsoleView

    view = ConsoleView(services, server, services.clock.ms())
    settings = _client_settings(config, address)
    rules = _rules(config)

    def make_clusters() -> Clusters:
        from tidelog.console.clusters import Cluster, Clusters

        cluster = Cluster(
            config.console_cluster_name, settings, local=view, pipelines=config.console_pipelines
        )
        return Clusters([cluster])

    def start() -> ConsoleServer:
        from tidelog.console.access import Access
        from tidelog.console.access_file import read_settings
        from tidelog.console.server import ConsoleServer

        assert config.console_listener is not None
        host, _, port = config.console_listener.rpartition(":")
        access = Access(
            read_only=config.console_read_only, settings=read_settings(config.console_access_config)
        )
        console = ConsoleServer(
            host.strip("[]") or "127.0.0.1", int(port), make_clusters, access, rules=rules
        )
        console.start()
        return console

    try:
        console = await asyncio.to_thread(start)
        log.info("the console answers", extra={"fields": {"url": console.url}})
        return console
    except ConfigError as error:
        raise StartFailed(str(error)) from error
    except OSError as error:
        raise StartFailed(f"console.listener={config.console_listener}: {error}") from error


def _rules(config: BrokerConfig) -> RecordRules | None:
    """The decoders and masks of the rules file, None without one."""
    from tidelog.console.records.rules import RecordRules, RulesError

    if not config.console_rules_file:
        return None
    try:
        return RecordRules.load(config.console_rules_file)
    except RulesError as error:
        raise StartFailed(f"console.rules.file={config.console_rules_file}: {error}") from error


def _client_settings(config: BrokerConfig, address: str) -> dict[str, object]:
    """The settings with which the console connects to its broker, as clients do."""
    settings: dict[str, object] = {}
    if config.console_command_config:
        try:
            settings.update(read_properties(config.console_command_config))
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise StartFailed(f"console.command.config={config.console_command_config}: {error}") from error
    return {"bootstrap.servers": address, **settings}
