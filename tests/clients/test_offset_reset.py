"""Plans of new offsets: every target, without a broker."""

from __future__ import annotations

import pytest

from tidelog.clients.offset_reset import (
    CommittedOffsets,
    CopyGroup,
    Current,
    Earliest,
    Latest,
    Lookup,
    NoCommittedOffset,
    Offsets,
    ResetPlan,
    ShiftBy,
    Target,
    ToOffset,
    ToOffsets,
    ToTime,
    plan_reset,
)
from tidelog.partitions import PartitionKey
from tidelog.protocol.offset_specs import EARLIEST, LATEST

ORDERS, EMPTY = ("orders", 0), ("orders", 1)
FIRST = {ORDERS: 10, EMPTY: 0}
END = {ORDERS: 100, EMPTY: 0}
COMMITTED = {"billing": {ORDERS: 40}, "search": {ORDERS: 7, ("users", 0): 3}, "new": {}}


def planned(target: Target, *partitions: PartitionKey, group_id: str = "billing") -> ResetPlan:
    """The plan for logs that reach from FIRST to END; the record of time T has offset T."""
    steps = plan_reset(group_id, partitions or (ORDERS, EMPTY), target)
    try:
        lookup = next(steps)
        while True:
            lookup = steps.send(answer(lookup))
    except StopIteration as end:
        plan: ResetPlan = end.value
        return plan


def answer(lookup: Lookup) -> Offsets:
    if isinstance(lookup, CommittedOffsets):
        return dict(COMMITTED[lookup.group_id])
    special = {EARLIEST: FIRST, LATEST: END}.get(lookup.timestamp)
    if special is not None:
        return {partition: special[partition] for partition in lookup.partitions}
    assert lookup.timestamp >= 0
    return {key: lookup.timestamp if lookup.timestamp < END[key] else -1 for key in lookup.partitions}


@pytest.mark.parametrize(
    ("target", "offsets"),
    [
        (Earliest(), {ORDERS: 10, EMPTY: 0}),
        (Latest(), {ORDERS: 100, EMPTY: 0}),
        (Current(), {ORDERS: 40, EMPTY: 0}),
        (ToTime(50), {ORDERS: 50, EMPTY: 0}),
        (ToTime(-5), {ORDERS: 0, EMPTY: 0}),
        (ToOffset(20), {ORDERS: 20, EMPTY: 0}),
        (CopyGroup("search"), {ORDERS: 10}),
        (CopyGroup("new"), {}),
        (ToOffsets({ORDERS: 12}), {ORDERS: 12}),
    ],
)
def test_each_target_has_its_offsets(target: Target, offsets: Offsets) -> None:
    assert planned(target).offsets == offsets


@pytest.mark.parametrize(("by", "offset", "outside"), [(5, 45, None), (-35, 10, 5), (1000, 100, 1040)])
def test_a_shift_stays_within_the_log(by: int, offset: int, outside: int | None) -> None:
    plan = planned(ShiftBy(by), ORDERS)
    assert plan.offsets == {ORDERS: offset}
    assert plan.outside == ({} if outside is None else {ORDERS: outside})


def test_a_shift_needs_a_committed_offset() -> None:
    with pytest.raises(NoCommittedOffset, match="orders-1"):
        planned(ShiftBy(1), EMPTY)


def test_a_time_after_the_last_record_is_the_log_end() -> None:
    plan = planned(ToTime(99_999), ORDERS)
    assert (plan.offsets, plan.no_later_record) == ({ORDERS: 100}, [ORDERS])


def test_a_copy_says_where_the_log_no_longer_has_the_offset() -> None:
    assert planned(CopyGroup("search"), ORDERS).outside == {ORDERS: 7}
