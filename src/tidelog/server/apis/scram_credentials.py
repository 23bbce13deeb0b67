"""AlterUserScramCredentials (51) v0 and DescribeUserScramCredentials (50) v0.

- Credentials are settings of a user in the tree. The controller writes all changes of a user at once, or none
  of them if one is refused: UNACCEPTABLE_CREDENTIAL for an empty name or an iteration count outside 4096 to
  16384, UNSUPPORTED_SASL_MECHANISM, DUPLICATE_RESOURCE for a mechanism that is there twice,
  RESOURCE_NOT_FOUND for the deletion of a credential that does not exist.
- Describe lists mechanisms and iterations, of all users without names. It never has salts or keys.
- They need ALTER and DESCRIBE on the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tidelog.errors import (
    ClusterAuthorizationFailed,
    DuplicateResource,
    ErrorCode,
    KafkaError,
    ResourceNotFound,
    UnacceptableCredential,
    UnknownServerError,
    UnsupportedSaslMechanism,
)
from tidelog.metadata.paths import decode_name, entity_path, is_node_name
from tidelog.metadata.state import DEFAULT_ENTITY
from tidelog.network.request import Request
from tidelog.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from tidelog.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from tidelog.security.scram import (
    BY_NAME,
    MAX_ITERATIONS,
    ScramAlgorithm,
    ScramCredential,
    credential_of_salted,
)
from tidelog.server.apis.authorization import ALTER, CLUSTER, DENIED, DESCRIBE, is_allowed
from tidelog.server.services import Services
from tidelog.slices import Slices

USERS = "users/"
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion


async def alter_user_scram_credentials(
    services: Services, request: Request, body: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    changes: dict[str, list[Upsertion | Deletion]] = {}
    every: list[Upsertion | Deletion] = [*body.deletions, *body.upsertions]
    for change in every:
        changes.setdefault(change.name, []).append(change)
    is_denied = not is_allowed(services, request, ALTER, CLUSTER)
    results = []
    for user, of_user in changes.items():
        result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(user=user)
        try:
            if is_denied:
                raise ClusterAuthorizationFailed(DENIED)
            await _alter(services, user, of_user)
            services.audit.changed(request, "User", user, "SCRAM credentials changed")
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
        results.append(result)
    return AlterUserScramCredentialsResponse(results=results)


async def _alter(services: Services, user: str, changes: list[Upsertion | Deletion]) -> None:
    texts = _checked(user, changes)

    def after(present: Mapping[str, str]) -> dict[str, str]:
        configs = dict(present)
        for name, text in texts.items():
            if text is not None:
                configs[name] = text
            elif configs.pop(name, None) is None:
                raise ResourceNotFound(f"user {user!r} has no {name} credential to delete")
        return configs

    await services.controller.change_entity_configs(entity_path("users", user), after)


def _checked(user: str, changes: list[Upsertion | Deletion]) -> dict[str, str | None]:
    """The new text of each mechanism, None to delete it. Raises the error of the first wrong change."""
    if not user or user == DEFAULT_ENTITY or not is_node_name(user):
        raise UnacceptableCredential(f"{user!r} cannot be the name of a user")
    mechanisms = [_mechanism(change.mechanism) for change in changes]
    for change, mechanism in zip(changes, mechanisms, strict=True):
        if isinstance(change, Upsertion):
            least = mechanism.min_iterations
            if not least <= change.iterations <= MAX_ITERATIONS:
                problem = "few" if change.iterations < least else "many"
                raise UnacceptableCredential(
                    f"{change.iterations} iterations are too {problem}: "
                    f"{least} to {MAX_ITERATIONS} are possible"
                )
            if not change.salted_password:
                raise UnknownServerError("the salted password is empty")
    if max(Counter(mechanisms).values()) > 1:
        raise DuplicateResource(f"a mechanism of user {user!r} is there twice")
    return {
        mechanism.mechanism_name: _text(change, mechanism) if isinstance(change, Upsertion) else None
        for change, mechanism in zip(changes, mechanisms, strict=True)
    }


def _mechanism(number: int) -> ScramAlgorithm:
    try:
        return ScramAlgorithm(number)
    except ValueError:
        raise UnsupportedSaslMechanism(f"there is no SCRAM mechanism {number}") from None


def _text(change: Upsertion, mechanism: ScramAlgorithm) -> str:
    return credential_of_salted(
        bytes(change.salted_password), mechanism, bytes(change.salt), change.iterations
    ).format()


def describe_user_scram_credentials(
    services: Services, request: Request, body: DescribeUserScramCredentialsRequest
) -> Slices[DescribeUserScramCredentialsResponse]:
    if not is_allowed(services, request, DESCRIBE, CLUSTER):
        return _denied(body)
    entities = services.metadata.snapshot.entity_configs
    answer = DescribeUserScramCredentialsResponse()
    if body.users:
        counts: Counter[str] = Counter()
        for user in body.users:
            counts[user.name] += 1
            yield
        for name, count in counts.items():
            answer.results.append(_described(name, entities, is_twice=count > 1))
            yield
        return answer
    names = []
    for path in entities:
        if _is_user(path):
            names.append(decode_name(path.removeprefix(USERS)))
        yield
    for name in sorted(names):
        if _infos(entities, name):
            answer.results.append(_described(name, entities))
        yield
    return answer


def _denied(body: DescribeUserScramCredentialsRequest) -> DescribeUserScramCredentialsResponse:
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return DescribeUserScramCredentialsResponse(
        error_code=code,
        error_message=DENIED,
        results=[
            DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
                user=user.name, error_code=code, error_message=DENIED
            )
            for user in body.users or ()
        ],
    )


def _is_user(path: str) -> bool:
    return path.startswith(USERS) and path.count("/") == 1 and path != USERS + DEFAULT_ENTITY


def _described(
    user: str, entities: Mapping[str, Mapping[str, str]], *, is_twice: bool = False
) -> DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
    result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(user=user)
    error: KafkaError | None = None
    if is_twice:
        error = DuplicateResource(f"user {user!r} is there twice")
    elif not user:
        error = ResourceNotFound("a user has a name")
    else:
        result.credential_infos = _infos(entities, user)
        if not result.credential_infos:
            error = ResourceNotFound(f"user {user!r} has no SCRAM credential")
    if error is not None:
        result.error_code, result.error_message = error.code, str(error)
    return result


def _infos(
    entities: Mapping[str, Mapping[str, str]], user: str
) -> list[DescribeUserScramCredentialsResponse.CredentialInfo]:
    configs = entities.get(entity_path("users", user), {})
    infos = []
    for name, mechanism in BY_NAME.items():
        if name not in configs:
            continue
        try:
            iterations = ScramCredential.parse(configs[name]).iterations
        except ValueError:
            continue
        infos.append(
            DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=mechanism, iterations=iterations)
        )
    return infos
