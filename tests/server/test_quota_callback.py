"""client.quota.callback.class: a Python class that decides who shares a quota, in a running broker."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.server.quota_broker import produce, quota_broker
from tidelog.metadata.state import ClusterState
from tidelog.server.quota.callback import QuotaEntity
from tidelog.server.run import StartFailed
from tidelog.testing import Broker


class TeamQuotas:
    """Users such as red-1 and red-2 share the quota of their team. `made` has the last one that was made."""

    made: TeamQuotas

    def __init__(self) -> None:
        TeamQuotas.made = self
        self.limits: dict[tuple[str, str | None], float] = {}
        self.configs: Mapping[str, object] = {}
        self.topics: set[str] = set()
        self.closed = False

    def configure(self, configs: Mapping[str, object]) -> None:
        self.configs = configs

    def quota_metric_tags(self, quota_type: str, principal: str, client_id: str) -> dict[str, str]:
        return {"user": principal.removeprefix("User:").partition("-")[0]}

    def quota_limit(self, quota_type: str, metric_tags: Mapping[str, str]) -> float | None:
        return self.limits.get((quota_type, metric_tags["user"]))

    def update_quota(self, quota_type: str, entity: QuotaEntity, new_value: float) -> None:
        self.limits[quota_type, entity.user] = new_value

    def remove_quota(self, quota_type: str, entity: QuotaEntity) -> None:
        self.limits.pop((quota_type, entity.user), None)

    def quota_reset_required(self, quota_type: str) -> bool:
        return True

    def update_cluster_metadata(self, cluster: ClusterState) -> bool:
        self.topics = set(cluster.topics)
        return False

    def close(self) -> None:
        self.closed = True


class BrokenQuotas(TeamQuotas):
    def configure(self, configs: Mapping[str, object]) -> None:
        raise ValueError("no teams are configured")


def name_of(found: type) -> str:
    return f"{found.__module__}.{found.__qualname__}"


def test_users_of_a_team_share_its_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"client.quota.callback.class": name_of(TeamQuotas)}
    with quota_broker(monkeypatch, settings) as broker:
        callback = TeamQuotas.made
        assert callback.configs["quota.window.num"] == "2"
        assert "t" in callback.topics
        broker.set_quota((("user", "red"),), producer_byte_rate=20_000.0)
        one, two, blue = broker.connect("red-1"), broker.connect("red-2"), broker.connect("blue-1")
        assert produce(one, 15_000) == 0
        assert produce(two, 15_000) > 0
        assert produce(blue, 200_000) == 0
        broker.set_quota((("user", "red"),), producer_byte_rate=None)
        assert produce(one, 15_000) == 0
        assert not callback.closed
    assert callback.closed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no.such.module.Class", "No module named"),
        (f"{__name__}.NoSuchClass", "NoSuchClass"),
        ("Class", "cannot be loaded"),
        (name_of(BrokenQuotas), "no teams are configured"),
    ],
)
def test_a_class_that_cannot_be_used_stops_the_start(name: str, words: str) -> None:
    broker = Broker({"client.quota.callback.class": name})
    with pytest.raises((StartFailed, RuntimeError), match=words) as raised:
        broker.start()
    assert "client.quota.callback.class" in str(raised.value)
    broker.close()
