"""ApiVersions (key 18): the requests, versions and features that a broker serves."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int16, int32, int64, string


class ApiVersionsRequest(Message, key=18, versions="0-4", flexible="3+"):
    client_software_name: str = string("3+", ignorable=True)
    client_software_version: str = string("3+", ignorable=True)


class ApiVersionsResponse(Message, key=18, versions="0-4", flexible="3+"):
    class ApiVersion(Struct):
        api_key: int = int16("0+")
        min_version: int = int16("0+")
        max_version: int = int16("0+")

    class SupportedFeatureKey(Struct):
        name: str = string("3+")
        min_version: int = int16("3+")
        max_version: int = int16("3+")

    class FinalizedFeatureKey(Struct):
        name: str = string("3+")
        max_version_level: int = int16("3+")
        min_version_level: int = int16("3+")

    error_code: int = int16("0+")
    api_keys: list[ApiVersionsResponse.ApiVersion] = array("0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    supported_features: list[ApiVersionsResponse.SupportedFeatureKey] = array("3+", tag=0, ignorable=True)
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[ApiVersionsResponse.FinalizedFeatureKey] = array("3+", tag=2, ignorable=True)
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)
