"""The clock of a flow: the slowest partition decides, unless it is silent."""

from __future__ import annotations

from tidelog.spark.pipelines.event_clock import EventClock, Newest

MINUTE, HOUR = 60_000, 3_600_000
SWIPES, TASKS = ("swipes", 0), ("tasks", 0)


def at(hour: float) -> Newest:
    return Newest(int(hour * HOUR), int(hour * HOUR))


def clock() -> EventClock:
    return EventClock(lateness_ms=HOUR, silent_ms=30 * MINUTE)


def test_a_topic_that_begins_later_does_not_make_the_others_late() -> None:
    time = clock()
    both = (SWIPES, TASKS)
    assert time.advance({SWIPES: at(2), TASKS: at(13)}, both) == 1 * HOUR
    assert time.advance({TASKS: at(13.5)}, both) == 1 * HOUR
    assert time.advance({SWIPES: at(4), TASKS: at(14)}, both) == 3 * HOUR


def test_a_silent_topic_holds_the_others_back_for_a_limited_time() -> None:
    time = clock()
    assert time.advance({SWIPES: at(9.1), TASKS: at(9)}, ()) == 8 * HOUR
    assert time.advance({SWIPES: at(9.5)}, ()) == 8 * HOUR
    assert time.advance({SWIPES: at(11)}, ()) == 10 * HOUR
    back = {SWIPES: at(12), TASKS: Newest(int(9.1 * HOUR), 12 * HOUR)}
    assert time.advance(back, ()) == 10 * HOUR, "it never goes back"


def test_a_topic_that_ended_long_ago_is_not_waited_for_once_it_is_read() -> None:
    time = clock()
    both = {SWIPES: at(10), TASKS: at(2)}
    assert time.advance(both, (TASKS,)) == 1 * HOUR
    assert time.advance({TASKS: at(2.1)}, ()) == 9 * HOUR
    assert clock().advance(both, (SWIPES,)) == 9 * HOUR


def test_a_topic_without_any_record_holds_nothing_back() -> None:
    assert clock().advance({SWIPES: at(5)}, ()) == 4 * HOUR


def test_a_partition_with_bad_events_alone_is_no_clock() -> None:
    assert clock().advance({SWIPES: at(5), TASKS: Newest(-1, 5 * HOUR)}, ()) == 4 * HOUR


def test_a_bad_event_at_the_beginning_of_a_partition_does_not_make_the_next_ones_late() -> None:
    time = clock()
    assert time.advance({SWIPES: at(13), TASKS: Newest(-1, 2 * HOUR)}, (TASKS,)) == 1 * HOUR
    assert time.advance({TASKS: at(2.5)}, (TASKS,)) == int(1.5 * HOUR)


def test_a_partition_that_gets_bad_events_alone_is_silent() -> None:
    time = clock()
    assert time.advance({SWIPES: at(9), TASKS: at(9)}, ()) == 8 * HOUR
    assert time.advance({SWIPES: at(11), TASKS: Newest(-1, 11 * HOUR)}, ()) == 10 * HOUR
    assert time.advance({TASKS: at(12)}, ()) == 11 * HOUR
    assert time.newest[TASKS] == at(12)
