"""Messages as JSON for people: readable, and without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tidelog.protocol import ProtocolError
from tidelog.protocol.api import API
from tidelog.protocol.json import HIDDEN, Json, Redaction, from_json, to_json
from tidelog.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from tidelog.protocol.messages.create_delegation_token import CreateDelegationTokenResponse
from tidelog.protocol.messages.create_topics import CreateTopicsRequest
from tidelog.protocol.messages.fetch import FetchResponse
from tidelog.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from tidelog.protocol.messages.metadata import MetadataRequest
from tidelog.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from tidelog.protocol.schema import Field, Struct

SECRETS = Redaction(lambda name: "password" in name)


def test_sasl_bytes_passwords_and_token_keys_are_hidden() -> None:
    upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
        name="alice", salt=b"s3cret", salted_password=b"s3cret"
    )
    for message in (
        SaslAuthenticateRequest(auth_bytes=b"s3cret"),
        SaslAuthenticateResponse(auth_bytes=b"s3cret"),
        CreateDelegationTokenResponse(hmac=b"s3cret"),
        AlterUserScramCredentialsRequest(upsertions=[upsertion]),
    ):
        version = message.VERSIONS.high
        assert "czNjcmV0" in json.dumps(to_json(message, version))
        shown = json.dumps(to_json(message, version, SECRETS))
        assert HIDDEN in shown
        assert "czNjcmV0" not in shown


SECRET_FIELDS = {"auth_bytes", "hmac", "request_data", "response_data", "salt", "salted_password"}
"""The data of a request and of its response are in an Envelope."""


def fields_of(struct: type[Struct]) -> Iterator[Field]:
    """The fields of a struct, and those of the structs in it."""
    for field in struct.FIELDS:
        yield field
        if field.kind == "struct":
            yield from fields_of(field.struct_type(struct))


def test_a_field_with_a_secret_is_hidden_in_every_message() -> None:
    found: dict[str, set[bool]] = {}
    for api in API.values():
        for message in (api.request, api.response):
            for field in fields_of(message):
                found.setdefault(field.name, set()).add(field.sensitive)
    assert {name for name, hidden in found.items() if hidden != {False}} == SECRET_FIELDS
    assert {name for name in SECRET_FIELDS if found[name] != {True}} == set()


def test_values_of_secret_settings_are_hidden_and_the_others_shown() -> None:
    config = IncrementalAlterConfigsRequest.AlterableConfig
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        configs=[
            config(name="ssl.key.password", value="s3cret"),
            config(name="retention.ms", value="60000"),
            config(name="old.password", value=None),
        ]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    shown: Json = to_json(request, 1, SECRETS)
    assert [item["value"] for item in shown["resources"][0]["configs"]] == [HIDDEN, "60000", None]  # type: ignore
    topic = CreateTopicsRequest.CreatableTopic(
        configs=[CreateTopicsRequest.CreatableTopicConfig(name="my.password", value="s3cret")]
    )
    assert "s3cret" not in json.dumps(to_json(CreateTopicsRequest(topics=[topic]), 7, SECRETS))


def test_a_part_of_a_file_is_shown_by_its_size() -> None:
    class Slice:
        size = 1234

    partition = FetchResponse.PartitionData(records=Slice())
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    assert "[1234 bytes of a file]" in json.dumps(to_json(FetchResponse(responses=[topic]), 12))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"topicz": []}, "MetadataRequest has no field topicz in version 4"),
        ({"topics": "t"}, "MetadataRequest.topics is 't'; a list is expected"),
        ({"topics": ["t"]}, r"MetadataRequest.topics\[0\] is 't'; an object is expected"),
        ({"topics": [{"name": 5}]}, r"topics\[0\].name is 5; a string is expected"),
        ({"topics": [{"name": None}]}, r"topics\[0\].name is null"),
        ({"allowAutoTopicCreation": 1}, "allowAutoTopicCreation is 1; bool is expected"),
    ],
)
def test_json_that_is_no_message_is_refused_with_the_place(value: dict[str, Json], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        from_json(MetadataRequest, 4, value)


def test_what_is_not_given_has_its_default() -> None:
    assert from_json(MetadataRequest, 4, {}) == MetadataRequest()
    with pytest.raises(ProtocolError, match="no base64"):
        from_json(SaslAuthenticateRequest, 2, {"authBytes": "?"})
