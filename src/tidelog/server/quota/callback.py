"""ClientQuotaCallback finds the quota of a client. DefaultQuotaCallback has Kafka's rules for that.

`client.quota.callback.class` names a class of its own as `package.module.Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from importlib import import_module
from typing import NamedTuple, Protocol

from tidelog.config import ConfigError
from tidelog.metadata.paths import encode_name
from tidelog.metadata.state import DEFAULT_ENTITY, ClusterState

SETTING = "client.quota.callback.class"

USER, CLIENT_ID = "user", "client-id"
"""The tags of a quota, and of its metrics."""


class QuotaType(Enum):
    """What a quota limits; the value is the `type` of its metrics."""

    PRODUCE = "Produce"
    FETCH = "Fetch"
    REQUEST = "Request"
    CONTROLLER_MUTATION = "ControllerMutation"


class QuotaEntity(NamedTuple):
    """The owner of a quota. Names are those of the tree: URL-encoded, or `<default>`."""

    user: str | None
    client_id: str | None


class QuotaTags(NamedTuple):
    """The clients that share one quota, "" for a part that does not matter."""

    user: str = ""
    client_id: str = ""


class ClientQuotaCallback(Protocol):
    """Kafka's interface of the same name. All methods are called on the thread of the broker.

    The class is created without arguments; `configure` gets the settings of the broker.
    """

    def configure(self, configs: Mapping[str, object]) -> None: ...

    def quota_metric_tags(self, quota_type: str, principal: str, client_id: str) -> Mapping[str, str]:
        """The tags of the quota of a client, such as {"user": "alice"}; clients with the same tags share it.

        `quota_type` is PRODUCE, FETCH, REQUEST or CONTROLLER_MUTATION, `principal` is "User:alice".
        """

    def quota_limit(self, quota_type: str, metric_tags: Mapping[str, str]) -> float | None:
        """The limit of the clients with these tags; None if they have none."""

    def update_quota(self, quota_type: str, entity: QuotaEntity, new_value: float) -> None:
        """A quota was set in the tree."""

    def remove_quota(self, quota_type: str, entity: QuotaEntity) -> None:
        """A quota was removed from the tree."""

    def quota_reset_required(self, quota_type: str) -> bool:
        """Whether limits have changed since the last call; asked after each change."""

    def update_cluster_metadata(self, cluster: ClusterState) -> bool:
        """The metadata of the cluster changed; returns whether limits have changed by it."""

    def close(self) -> None: ...


class DefaultQuotaCallback:
    """Kafka's eight levels of one type of quota; the first that is set counts.

    1. user and client id, 2. user and default client id, 3. user, 4. default user and client id, 5. default
    user and default client id, 6. default user, 7. client id, 8. default client id.
    """

    def __init__(self) -> None:
        self._limits: dict[QuotaEntity, float] = {}

    @property
    def is_empty(self) -> bool:
        return not self._limits

    def set(self, entity: QuotaEntity, limit: float | None) -> None:
        if limit is None:
            self._limits.pop(entity, None)
        else:
            self._limits[entity] = limit

    def tags(self, user: str, client_id: str) -> QuotaTags:
        """The tags of a client's quota. `user` is the URL-encoded name of its principal.

        As in Kafka, a client without a quota has the tags of the only kind of quotas that is set; with
        several kinds its tags have the client id.
        """
        limits = self._limits
        has_user = {entity.client_id is not None for entity in limits if entity.user is not None}
        has_client = any(entity.user is None for entity in limits)
        if not has_user:
            return QuotaTags("", client_id)
        if not has_client and len(has_user) == 1:
            return QuotaTags(user, client_id if True in has_user else "")
        named = encode_name(client_id)
        if (user, named) in limits or (user, DEFAULT_ENTITY) in limits:
            return QuotaTags(user, client_id)
        if (user, None) in limits:
            return QuotaTags(user, "")
        if (DEFAULT_ENTITY, named) in limits or (DEFAULT_ENTITY, DEFAULT_ENTITY) in limits:
            return QuotaTags(user, client_id)
        if (DEFAULT_ENTITY, None) in limits:
            return QuotaTags(user, "")
        return QuotaTags("", client_id)

    def limit(self, tags: QuotaTags) -> float | None:
        user, client_id = tags.user, encode_name(tags.client_id)
        levels: list[tuple[str | None, str | None]]
        if user and client_id:
            levels = [
                (user, client_id),
                (user, DEFAULT_ENTITY),
                (DEFAULT_ENTITY, client_id),
                (DEFAULT_ENTITY, DEFAULT_ENTITY),
            ]
        elif user:
            levels = [(user, None), (DEFAULT_ENTITY, None)]
        elif client_id:
            levels = [(None, client_id), (None, DEFAULT_ENTITY)]
        else:
            return None
        for user_level, client_level in levels:
            limit = self._limits.get(QuotaEntity(user_level, client_level))
            if limit is not None:
                return limit
        return None


def load_callback(class_name: str, configs: Mapping[str, object]) -> ClientQuotaCallback:
    """The configured class, created and configured. Raises ConfigError with the name of the setting."""
    module, _, name = class_name.rpartition(".")
    try:
        made: ClientQuotaCallback = getattr(import_module(module), name)()
        made.configure(configs)
    except Exception as error:
        raise ConfigError(SETTING, class_name, f"the class cannot be loaded: {error!r}") from error
    return made
