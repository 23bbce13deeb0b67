"""The JSON of ACLs and delegation tokens in the tree, as Kafka 3.9 writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.metadata.nodes import BadNode, Fields, dump_json
from tidelog.metadata.paths import decode_name, encode_name


@dataclass(slots=True, frozen=True)
class AclEntry:
    """An access control entry: "User:alice", "Allow", "Read", "*"."""

    principal: str
    permission: str
    operation: str
    host: str


def encode_acls(entries: Sequence[AclEntry]) -> bytes:
    """/kafka-acl/<type>/<name>: the ACL of a resource."""
    acls = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission,
            "host": entry.host,
            "operation": entry.operation,
        }
        for entry in entries
    ]
    return dump_json({"acls": acls, "version": 1})


def decode_acls(data: bytes) -> list[AclEntry]:
    if not data:
        return []
    return [
        AclEntry(acl.text("principal"), acl.text("permissionType"), acl.text("operation"), acl.text("host"))
        for acl in Fields(data).objects("acls")
    ]


@dataclass(slots=True, frozen=True)
class AclChange:
    """The resource whose ACL changed: type and pattern in capitals, such as TOPIC and LITERAL or PREFIXED."""

    resource_type: str
    name: str
    pattern_type: str = "LITERAL"

    def encode(self) -> bytes:
        """Changes of literal patterns are in /kafka-acl-changes, others in /kafka-acl-extended-changes."""
        if self.pattern_type == "LITERAL":
            return f"{self.resource_type}:{self.name}".encode()
        value = {"version": 1, "resourceType": self.resource_type, "name": self.name}
        return dump_json(value | {"patternType": self.pattern_type})

    @classmethod
    def decode(cls, data: bytes) -> AclChange:
        if data.startswith(b"{"):
            fields = Fields(data)
            return cls(fields.text("resourceType"), fields.text("name"), fields.text("patternType"))
        resource_type, colon, name = data.decode(errors="replace").partition(":")
        if not colon:
            raise BadNode(f"a change of access rules looks like TYPE:name, not {data[:40]!r}")
        return cls(resource_type, name)


@dataclass(slots=True)
class TokenNode:
    """/delegation_token/tokens/<id>: principals are written URL-encoded, times in milliseconds."""

    token_id: str
    owner: str
    requester: str
    renewers: list[str]
    issue_timestamp: int
    expiry_timestamp: int
    max_timestamp: int

    def encode(self) -> bytes:
        return dump_json(
            {
                "issueTimestamp": self.issue_timestamp,
                "renewers": [encode_name(renewer) for renewer in self.renewers],
                "tokenRequester": encode_name(self.requester),
                "tokenId": self.token_id,
                "owner": encode_name(self.owner),
                "expiryTimestamp": self.expiry_timestamp,
                "maxTimestamp": self.max_timestamp,
                "version": 3,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> TokenNode:
        fields = Fields(data)
        owner = decode_name(fields.text("owner"))
        requester = decode_name(fields.text("tokenRequester")) if "tokenRequester" in fields else owner
        return cls(
            fields.text("tokenId"),
            owner,
            requester,
            [decode_name(renewer) for renewer in fields.texts("renewers")],
            fields.integer("issueTimestamp"),
            fields.integer("expiryTimestamp"),
            fields.integer("maxTimestamp"),
        )
