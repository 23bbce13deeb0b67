"""ApiVersions (18) v0-4: the served APIs and versions, and the features of this broker.

- A request of a newer version gets UNSUPPORTED_VERSION in v0, with the versions of ApiVersions alone: the
  client then asks again in a version that the broker serves.
- v3 has the name and version of the client's software. An empty one, or one with other characters than
  letters, digits, "-" and ".", is INVALID_REQUEST.
- The APIs of client metrics are listed only with metrics.listener.
- In a cluster, the listeners of the brokers list the APIs between brokers, too.
- v3 answers with the finalized features. Features whose lowest version is 0 are in v4 only.
"""

from __future__ import annotations

import re

from tidelog.errors import ErrorCode
from tidelog.network.request import Request
from tidelog.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.server.apis.api import NOT_CHECKED, Api
from tidelog.server.services import Services

API_VERSIONS = 18
MAX_VERSION = 4

_CLIENT_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(services: Services, request: Request, body: ApiVersionsRequest) -> ApiVersionsResponse:
    answer = answer_versions(services, request.listener, request.api_version, body)
    if request.api_version >= 3 and not answer.error_code:
        request.channel.client_software = (body.client_software_name, body.client_software_version)
    return answer


def answer_versions(
    services: Services, listener: str, api_version: int, body: ApiVersionsRequest
) -> ApiVersionsResponse:
    """The answer on a listener, also before its client is authenticated."""
    if not 0 <= api_version <= MAX_VERSION:
        own = ApiVersionsResponse.ApiVersion(api_key=API_VERSIONS, min_version=0, max_version=MAX_VERSION)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
    if api_version >= 3:
        name, version = body.client_software_name, body.client_software_version
        if not (_CLIENT_SOFTWARE.fullmatch(name) and _CLIENT_SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(
                api_key=api.key,
                min_version=api.min_version
                if api.announced_min_version is None
                else api.announced_min_version,
                max_version=api.max_version,
            )
            for api in sorted(services.apis.values(), key=lambda api: api.key)
            if not api.from_brokers or _is_for_brokers(services, listener)
            if not api.for_collectors or services.config.metrics_listener is not None
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in services.supported_features.items()
            if low > 0 or api_version >= 4
        ],
        finalized_features_epoch=services.metadata.features_epoch,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in services.metadata.features.items()
        ],
    )


def _is_for_brokers(services: Services, listener: str) -> bool:
    return services.cluster is not None and listener in services.cluster.listeners


APIS = (Api(API_VERSIONS, 0, MAX_VERSION, api_versions, access=NOT_CHECKED),)
