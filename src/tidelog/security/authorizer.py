"""Authorizer: decides who may do what. `authorizer.class.name` names the class.

A class of your own is a Python class, `package.module.Class`, that has the methods of `Authorizer`. It is
made without arguments. Kafka's names of its own authorizers mean `AclAuthorizer`, which keeps rules in the
tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol, cast

from tidelog.config.values import ConfigError

if TYPE_CHECKING:
    from tidelog.errors import KafkaError
    from tidelog.metadata.async_tree import AsyncTree
    from tidelog.security.acl import AclBinding, AclBindingFilter
    from tidelog.security.operations import AclOperation, AclResourceType, Action

SETTING: Final = "authorizer.class.name"
JAVA_NAMES: Final = (
    "kafka.security.authorizer.AclAuthorizer",
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
)


class AuthorizableRequestContext(Protocol):
    """Who asks, and how."""

    @property
    def principal(self) -> str:
        """For example User:alice."""

    @property
    def client_address(self) -> str:
        """The address of the client, as Java writes it: IPv6 with all eight groups."""

    @property
    def listener(self) -> str: ...

    @property
    def client_id(self) -> str | None: ...


class Authorizer(Protocol):
    """Every method is called on the loop of the broker: only those that are coroutines may wait."""

    @property
    def generation(self) -> int | None:
        """Grows when decisions may have changed: the broker remembers decisions of one generation.

        None: a decision may be different the next time, and is asked for each time.
        """

    @property
    def acl_count(self) -> int:
        """How many rules there are, for the metric."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """The settings of the broker, before `start`. Raises ConfigError."""

    async def start(self, tree: AsyncTree) -> None:
        """Read the rules, before the first request. `tree` is the tree of the cluster."""

    def authorize(self, context: AuthorizableRequestContext, actions: Sequence[Action]) -> list[bool]:
        """Whether each action is allowed."""

    def authorize_by_resource_type(
        self,
        context: AuthorizableRequestContext,
        operation: AclOperation,
        resource_type: AclResourceType,
    ) -> bool:
        """Whether an operation is allowed on any resource of a type."""

    async def create_acls(
        self, context: AuthorizableRequestContext, bindings: Sequence[AclBinding]
    ) -> list[KafkaError | None]:
        """Add rules; returns the error of each. Decisions have the rules when this returns."""

    async def delete_acls(
        self, context: AuthorizableRequestContext, filters: Sequence[AclBindingFilter]
    ) -> list[list[tuple[AclBinding, KafkaError | None]]]:
        """Remove the rules that match; returns the rules of each filter, each with its error."""

    def acls(self, wanted: AclBindingFilter) -> Iterator[AclBinding | None]:
        """The rules that match. None for some that do not: others may run between two of the iterator."""

    async def close(self) -> None:
        """Free what `start` took; also after a start that failed."""


MEMBERS: Final = tuple(name for name in vars(Authorizer) if not name.startswith("_"))


def make_authorizer(name: str) -> Authorizer | None:
    """An authorizer of a class; None without a name. ConfigError if there is no such class."""
    name = name.strip()
    if not name:
        return None
    if name in JAVA_NAMES:
        from tidelog.security.acl_authorizer import AclAuthorizer

        return AclAuthorizer()
    module, _, cls = name.rpartition(".")
    try:
        made = getattr(import_module(module), cls)()
    except (ImportError, AttributeError, ValueError) as error:
        known = " or ".join(JAVA_NAMES)
        problem = f"there is no such Python class ({error}); Kafka's own are {known}"
        raise ConfigError(SETTING, name, problem) from error
    missing = [member for member in MEMBERS if not hasattr(made, member)]
    if missing:
        raise ConfigError(SETTING, name, f"the class lacks {', '.join(missing)} of {Authorizer.__qualname__}")
    return cast("Authorizer", made)
