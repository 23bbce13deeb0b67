"""Roles: the matrix of roles and actions, patterns, and files with faults."""

from __future__ import annotations

import tomllib

import pytest

from tidelog.config import ConfigError
from tidelog.console.roles import EVERYTHING, Grant, Role, Roles, needed_role, parse_roles

MATRIX = {
    "topic.view": "vieweroperatoradmin",
    "records.read": "vieweroperatoradmin",
    "group.view": "vieweroperatoradmin",
    "pipeline.view": "vieweroperatoradmin",
    "records.produce": "operatoradmin",
    "group.reset": "operatoradmin",
    "group.delete": "operatoradmin",
    "topic.edit": "operatoradmin",
    "topic.create": "operatoradmin",
    "transaction.abort": "operatoradmin",
    "topic.delete": "admin",
    "acl.edit": "admin",
    "quota.edit": "admin",
    "user.edit": "admin",
    "cluster.edit": "admin",
    "something.new": "admin",
    "": "admin",
}


@pytest.mark.parametrize("action", MATRIX)
@pytest.mark.parametrize("role", Role)
def test_the_matrix_of_roles_and_actions(role: Role, action: str) -> None:
    roles = Roles((Grant(role, ("User:alice",)),))
    may = roles.may("User:alice", (), action, "local", "topic:orders")
    assert may is (role.name.lower() in MATRIX[action] and role is not Role.NONE)
    assert not roles.may("User:bob", (), action, "local", "topic:orders")


def test_a_console_without_login_lets_everybody_do_everything() -> None:
    assert all(EVERYTHING.may("anonymous", (), action, "local", "") for action in MATRIX)


FILE = """
default = "none"
[[grants]]
role = "operator"
principals = ["User:alice"]
groups = ["billing-team"]
clusters = ["prod*"]
resources = ["topic:billing-*", "group:billing-*"]
[[grants]]
role = "viewer"
principals = ["User:*"]
clusters = ["test"]
"""


def test_a_file_of_grants() -> None:
    roles = parse_roles(tomllib.loads(FILE), "roles")

    def role(who: str, cluster: str, resource: str, *groups: str) -> str:
        return roles.role(who, groups, cluster, resource).name

    assert role("User:alice", "prod-1", "topic:billing-eu") == "OPERATOR"
    assert role("User:carol", "prod-1", "group:billing-x", "billing-team") == "OPERATOR"
    assert role("User:alice", "prod-1", "topic:orders") == "NONE"
    assert role("User:alice", "prod-1", "") == "NONE"
    assert role("User:alice", "staging", "topic:billing-eu") == "NONE"
    assert role("User:dave", "test", "") == "VIEWER"
    # A viewer of some topics may open the list of topics, and nothing else without a name.
    assert roles.may("User:alice", (), "topic.view", "prod-1", "")
    assert not roles.may("User:alice", (), "topic.create", "prod-1", "")
    for action in (
        "acl.view",
        "connection.view",
        "pipeline.view",
        "quota.view",
        "transaction.view",
        "user.view",
    ):
        assert not roles.may("User:alice", (), action, "prod-1", "")
        assert roles.may("User:dave", (), action, "test", "")
    assert not roles.sees_all("User:alice", (), "prod-1")
    assert roles.sees_all("User:dave", (), "test")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("default = 3", "expected one of none, viewer"),
        ("defaults = 'viewer'", "unknown name defaults"),
        ("[[grants]]\nprincipals=['User:a']", "expected a role"),
        ("[[grants]]\nrole='chief'\nprincipals=['User:a']", "expected one of none"),
        ("[[grants]]\nrole='viewer'", "expected principals or groups"),
        ("[[grants]]\nrole='viewer'\nprincipals=['a']", "write User:a"),
        ("[[grants]]\nrole='viewer'\nprincipals='User:a'", "a list of texts"),
        ("[[grants]]\nrole='viewer'\ngroups=['x']\nresources=['orders']", "topic:orders"),
        ("[[grants]]\nrole='viewer'\ngroups=['x']\ntopics=['orders']", "expected role, principals"),
        ("grants = 'x'", r"\[\[roles.grants\]\]"),
    ],
)
def test_a_fault_in_the_file_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_roles(tomllib.loads(text), "roles")


def test_names_of_actions_decide_for_viewers() -> None:
    assert needed_role("anything.view") is Role.VIEWER
    assert needed_role("view") is Role.VIEWER
