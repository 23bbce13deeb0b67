"""The settings of clients among the options: they hide secrets, and find the files that Spark distributed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from tidelog.clients.settings import admin_definition, consumer_definition, producer_definition

FILES = ("ssl.keystore.location", "ssl.truststore.location")
_SECRET = re.compile(r"(?i)secret|password|token|jaas|passphrase")


class ClientOptions(dict[str, str]):
    """Options or settings by name. The repr hides the values of secrets."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown = (
            f"{name!r}: {'[hidden]' if is_secret(name) else repr(value)}" for name, value in self.items()
        )
        return "{" + ", ".join(shown) + "}"


def is_secret(name: str) -> bool:
    """Whether the value of a setting or option is not to be shown."""
    setting = name.removeprefix("kafka.")
    if _SECRET.search(setting):
        return True
    definitions = (consumer_definition(), producer_definition(), admin_definition())
    return any(setting in table and table[setting].sensitive for table in definitions)


def on_this_machine(client: Mapping[str, str]) -> dict[str, str]:
    """The settings with the paths of stores on this driver or executor.

    A relative name that is no file here may be one of `spark.files`, `--files` or `addFile`.
    """
    found = dict(client)
    for name in FILES:
        path = found.get(name)
        if path and not os.path.isabs(path) and not os.path.exists(path):
            found[name] = _distributed(path) or path
    return found


def _distributed(name: str) -> str | None:
    from pyspark import SparkFiles

    try:
        root = SparkFiles.getRootDirectory()
    except (AssertionError, AttributeError):  # outside of Spark's processes
        return None
    # Files of the whole application are in the folder above that of a session.
    for folder in (root, os.path.dirname(root)):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            return path
    return None
