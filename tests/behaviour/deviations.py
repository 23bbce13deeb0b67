"""Where we answer otherwise than Kafka 4.3, and why. What is not named here agrees."""

from __future__ import annotations

import re

# APIs that are not announced.
NOT_SERVED: dict[str, str] = {
    "DescribeAcls": "there is no authorizer yet",
}

# Cases of a story that needs an API above from its first line on.
STORIES: dict[str, str] = {}

# Single cases. One that agrees has to leave this list.
CASES: dict[str, str] = {
    "api versions": "only the APIs and features that are served are announced",
    "api versions v0": "only the APIs that are served are announced",
}


# Single values, wherever they stand: how the difference is written, and the reason.
DETAILS: dict[str, str] = {
    r"\.configs\[min\.insync\.replicas\]\.configSource: 3 in Kafka, 5 here": (
        "Kafka sets it for the whole cluster when it turns on eligible leader replicas, which we do not have"
    ),
    r"\.errorMessage: None in Kafka, '.+' here": "we say why where Kafka gives the error code alone",
}


def unexplained(differences: list[str]) -> list[str]:
    """The differences without those that have a reason wherever they stand."""
    return [line for line in differences if not any(re.search(detail, line) for detail in DETAILS)]


def deviation(case: str, api: str) -> str | None:
    """Why a case may differ from Kafka; None where it must not."""
    if case in CASES:
        return CASES[case]
    story = next((reason for prefix, reason in STORIES.items() if case.startswith(prefix)), None)
    return story or NOT_SERVED.get(api)
