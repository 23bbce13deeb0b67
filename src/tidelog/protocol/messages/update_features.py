"""UpdateFeatures (key 57): change the finalized versions of features."""

from __future__ import annotations

from tidelog.protocol.message import Message
from tidelog.protocol.schema import Struct, array, boolean, int8, int16, int32, string


class UpdateFeaturesRequest(Message, key=57, versions="0-2", flexible="0+"):
    class FeatureUpdateKey(Struct):
        feature: str = string("0+")
        max_version_level: int = int16("0+")
        allow_downgrade: bool = boolean("0")
        upgrade_type: int = int8("1+", default=1)

    timeout_ms: int = int32("0+", default=60000)
    feature_updates: list[UpdateFeaturesRequest.FeatureUpdateKey] = array("0+")
    validate_only: bool = boolean("1+")


class UpdateFeaturesResponse(Message, key=57, versions="0-2", flexible="0+"):
    class UpdatableFeatureResult(Struct):
        feature: str = string("0+")
        error_code: int = int16("0+")
        error_message: str | None = string("0+", nullable="0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[UpdateFeaturesResponse.UpdatableFeatureResult] = array("0-1", ignorable=True)
