"""Starts the console of a broker (`console.listener`): checks its settings, binds, and starts its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.config.properties import read_properties
from tidelog.config.values import ConfigError
from tidelog.console.extra import missing_packages
from tidelog.server.run import StartFailed

if TYPE_CHECKING:
    from tidelog.console.broker_link import ConsoleSettings
    from tidelog.network.server import SocketServer
    from tidelog.server.config.broker import BrokerConfig
    from tidelog.server.console_process import ConsoleProcess
    from tidelog.server.services import Services


def start_console(
    config: BrokerConfig, services: Services, server: SocketServer, address: str
) -> ConsoleProcess | None:
    """Start the console if there is a `console.listener`. Raises StartFailed if it cannot start."""
    if config.console_listener is None:
        return None
    missing = missing_packages()
    if missing:
        raise StartFailed(f"console.listener={config.console_listener}: {missing}")
    from tidelog.console.listener import bind
    from tidelog.server.console_process import ConsoleProcess
    from tidelog.server.console_view import ConsoleView

    _check_files(config)
    settings = console_settings(config, services, address)
    view = ConsoleView(services, server, services.clock.ms())
    host, _, port = config.console_listener.rpartition(":")
    try:
        listener = bind(host.strip("[]") or "127.0.0.1", int(port))
        try:
            console = ConsoleProcess(listener, settings, view)
            console.start()
        except OSError:
            listener.close()
            raise
        return console
    except OSError as error:
        raise StartFailed(f"console.listener={config.console_listener}: {error}") from error


def console_settings(config: BrokerConfig, services: Services, address: str) -> ConsoleSettings:
    """The settings of the console's process; the levels of loggers are added later."""
    from tidelog.console.broker_link import ConsoleSettings

    return ConsoleSettings(
        services.broker_id,
        config.console_cluster_name,
        _client_settings(config, address),
        list(config.console_pipelines),
        config.console_read_only,
        config.console_access_config,
        config.console_rules_file,
        {},
        reads_files=services.authorizer is None,
        scheduling_policy=config.console_scheduling_policy,
        allowed_hosts=_allowed_hosts(config),
    )


def _allowed_hosts(config: BrokerConfig) -> list[str]:
    """The names that the broker has for its clients, the one of the console's listener, and those set."""
    advertised = [endpoint.host for endpoint in config.advertised_endpoints]
    own = (config.console_listener or "").rpartition(":")[0]
    return [*config.console_allowed_hosts, *advertised, own]


def _check_files(config: BrokerConfig) -> None:
    """Refuse files that the console could not use. It reads them itself."""
    if config.console_access_config:
        from tidelog.console.access_file import read_access

        try:
            read_access(config.console_access_config)
        except ConfigError as error:
            raise StartFailed(str(error)) from error
    if config.console_rules_file:
        from tidelog.console.records.rules import RecordRules, RulesError

        try:
            RecordRules.load(config.console_rules_file)
        except RulesError as error:
            raise StartFailed(f"console.rules.file={config.console_rules_file}: {error}") from error


def _client_settings(config: BrokerConfig, address: str) -> dict[str, str]:
    """The settings with which the console connects to its broker, as clients do."""
    settings: dict[str, str] = {}
    if config.console_command_config:
        try:
            settings.update(read_properties(config.console_command_config))
        except (OSError, UnicodeDecodeError, ConfigError) as error:
            raise StartFailed(f"console.command.config={config.console_command_config}: {error}") from error
    return {"bootstrap.servers": address, **settings}
