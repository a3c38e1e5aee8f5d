"""What tasks of a query tell the driver, and settings that topics have of their own."""

from __future__ import annotations

import pytest

from semel.core.errors import ConfigError
from semel.core.ledger import OffsetRange
from semel.core.records import DeadLetter
from semel.driver.microbatch.streaming import of_topic, shape
from semel.tasks.microbatch.commit import SideOutput
from semel.tasks.microbatch.streams import StreamOutput, TaskReports
from tests.engine.microbatch.conftest import connector


def letter(offset: int) -> DeadLetter:
    return DeadLetter("t", 0, offset, None, b"{", (), 0, "VALUE_CONVERTER", "e", "bad")


def output(task: int, first: int, count: int, *bad: int) -> StreamOutput:
    side = SideOutput(letters=[letter(n) for n in bad])
    return StreamOutput("3", "t", task, side, {(0, first): count})


def test_a_task_that_ran_twice_counts_once() -> None:
    once = [output(0, 10, 5, 11, 13)]
    for outputs in (once, once * 2, [output(0, 10, 3, 11), *once]):  # a retry; a killed attempt
        told = TaskReports(outputs, [OffsetRange("t", 0, 10, 15)])
        assert told.read == {("t", 0): 5}
        assert [x.offset for x in told.letters] == [11, 13]
        assert told.unread == []


def test_records_that_the_plan_has_left_unread_are_noticed() -> None:
    ranges = [OffsetRange("t", 0, 10, 15), OffsetRange("t", 1, 0, 5), OffsetRange("u", 0, 0, 1)]
    assert TaskReports([output(0, 10, 5)], ranges).unread == ["t", "u"]
    assert TaskReports([output(0, 10, 5), output(1, 0, 5)], ranges).unread == ["u"]


def test_settings_are_for_all_topics_or_for_each() -> None:
    both = connector(topics="a,b", watermark="a:1 minute,5 minutes", **{"event.time.field": "b:at"})
    assert of_topic(both, "watermark", both.watermark, "a") == "1 minute"
    assert of_topic(both, "watermark", both.watermark, "b") == "5 minutes"
    assert of_topic(both, "event.time.field", both.event_time, "a") == ""
    assert of_topic(both, "event.time.field", both.event_time, "b") == "at"
    with pytest.raises(ConfigError, match="c is not among its topics"):
        of_topic(both, "watermark", ("c:1 minute",), "a")
    with pytest.raises(ConfigError, match="give one for all topics"):
        of_topic(both, "watermark", ("1 minute", "2 minutes"), "a")


def test_two_analyses_of_a_plan_are_the_same() -> None:
    one = "Project [a#12, b#7L]\n+- EventTimeWatermark 1b4e28ba-2fa1-11d2-883f-0016d3cca427, a#12"
    other = (
        "Project [a#52, b#97L]\n+- EventTimeWatermark 6fa459ea-ee8a-3ca4-894e-db77e160355e, a#52"
    )
    assert shape(one) == shape(other)
    assert shape(one) != shape(one.replace("Project [a#12, b", "Project [b"))
