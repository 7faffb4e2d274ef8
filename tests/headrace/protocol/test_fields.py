"""Field types: a value outside its bounds is no message."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.errors import ProtocolError
from headrace.protocol.messages import control as m
from headrace.protocol.transport.codec import message_codec
from tests.metric_values import number

GOOD: dict[str, Any] = {"role": "learner", "name": "learner-0", "pid": 1, "host": "here"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pid", 2**64 - 1),
        ("pid", 2**31),
        ("pid", -1),
        ("update", 2**53),
        ("update", -1),
        ("capacity", 2**31),
        ("name", ""),
        ("name", "x" * 65),
        ("name", "two words"),
        ("name", "learner-0\n"),
        ("name", "a~b"),
        ("host", "nul\0"),
        ("host", "h" * 256),
        ("resumed_from", "two\nlines"),
    ],
)
def test_a_hello_with_a_value_that_cannot_be(field: str, value: object) -> None:
    codec = message_codec(max_bytes=1 << 20)
    assert codec.decode(codec.encode(m.Hello(**GOOD))) == m.Hello(**GOOD)
    with pytest.raises(ProtocolError, match=field):
        codec.decode(codec.encode(m.Hello(**GOOD | {field: value})))


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -0.1, 1e13])
def test_durations_are_finite_and_not_negative(seconds: float) -> None:
    codec = message_codec(max_bytes=1 << 20)
    with pytest.raises(ProtocolError, match="gap_s"):
        codec.decode(codec.encode(m.WeightsLoaded(version=1, gap_s=seconds, load_s=0.0)))


def test_a_digest_cannot_name_another_folder() -> None:
    codec = message_codec(max_bytes=1 << 20)
    notice = m.WeightNotice(version=1, update=1, digest="../../up", num_bytes=1, sources=[])
    with pytest.raises(ProtocolError, match="digest"):
        codec.decode(codec.encode(notice))


def test_metrics_may_be_no_numbers_but_their_names_are_names() -> None:
    codec = message_codec(max_bytes=1 << 20)
    done = m.UpdateDone(
        batch_id=1, update=1, lineage=0, metrics={"actor/pg_loss": math.nan}, diagnostics=[]
    )
    heard = codec.decode(codec.encode(done))
    assert isinstance(heard, m.UpdateDone)
    assert math.isnan(number(heard.metrics["actor/pg_loss"]))
    for name in ("", "nul\0", "x" * 129):
        with pytest.raises(ProtocolError):
            codec.decode(codec.encode(replace(done, metrics={name: 1.0})))
