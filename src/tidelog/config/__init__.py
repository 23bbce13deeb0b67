"""Settings as declarations: typed keys, rules for their values, and Java's properties format.

Knows no setting by name; the broker's and the topics' settings are declared in the server.
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
