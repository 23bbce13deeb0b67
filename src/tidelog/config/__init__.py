"""Definitions of settings: typed keys, rules for their values, and Java's properties format.

The server package defines the settings of brokers, topics and groups.
"""

from tidelog.config.definition import ConfigDef, ConfigKey, Dynamic, Importance
from tidelog.config.properties import parse_properties, read_properties
from tidelog.config.values import ConfigError, ConfigType, ConfigValue, Password

__all__ = [
    "ConfigDef",
    "ConfigError",
    "ConfigKey",
    "ConfigType",
    "ConfigValue",
    "Dynamic",
    "Importance",
    "Password",
    "parse_properties",
    "read_properties",
]
