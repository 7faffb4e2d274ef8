"""Deliveries without sockets: whatever a connection loses, each message is handed on once and in
its order, and nothing is asked for or sent again without need."""

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.messages.control import Heartbeat, Message, Missing, Shutdown
from headrace.protocol.transport.codec import message_codec
from headrace.protocol.transport.delivery import (
    ASK_AGAIN_S,
    MAX_ASK_AGAIN_S,
    Delivery,
    DeliveryHeader,
    Frames,
)

CODEC = message_codec(max_bytes=1 << 16)
KEY = 77


def said(number: int) -> Shutdown:
    return Shutdown(reason=str(number))


class Pair:
    """A coordinator's end and a role's, and a wire in between that loses what it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ends = {
            "coordinator": Delivery(CODEC, key=KEY, clock=lambda: self.now),
            "role": Delivery(CODEC, clock=lambda: self.now),
        }
        self.wires: dict[str, deque[Frames]] = {name: deque() for name in self.ends}
        """By sender."""
        self.heard: dict[str, list[Message]] = {name: [] for name in self.ends}
        self.sent: dict[str, list[Message]] = {name: [] for name in self.ends}

    def say(self, name: str, message: Message) -> None:
        frames = self.ends[name].send(message)
        assert frames is not None
        self.wires[name].append(frames)
        if not isinstance(message, Heartbeat):
            self.sent[name].append(message)

    def reset(self, lost: Sequence[int]) -> None:
        """A connection breaks: of each wire, so many of the last messages are gone."""
        for wire, number in zip(self.wires.values(), lost, strict=True):
            for _ in range(min(number, len(wire))):
                wire.pop()

    def carry(self, name: str, number: int = 10**9) -> None:
        """So many messages of a sender arrive."""
        other = "role" if name == "coordinator" else "coordinator"
        for _ in range(min(number, len(self.wires[name]))):
            frames = self.wires[name].popleft()
            message = CODEC.decode(frames[:2])
            handed_on, answers = self.ends[other].accept(DeliveryHeader.of(frames[2]), message)
            self.wires[other].extend(answers)
            if handed_on:
                self.heard[other].append(message)

    def settle(self) -> None:
        """The coordinator's heart beats, and nothing breaks any more."""
        for _ in range(8):
            self.now += MAX_ASK_AGAIN_S
            self.say("coordinator", Heartbeat())
            for _ in range(4):
                self.carry("coordinator")
                self.carry("role")

    def of(self, name: str) -> list[Message]:
        return [message for message in self.heard[name] if not isinstance(message, Heartbeat)]


STEPS = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(["coordinator", "role"])),
    st.tuples(st.just("beat"), st.just("coordinator")),
    st.tuples(st.just("carry"), st.sampled_from(["coordinator", "role"]), st.integers(1, 4)),
    st.tuples(st.just("reset"), st.integers(0, 5), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.floats(0.0, 3.0)),
)


@given(st.lists(STEPS, max_size=60))
def test_every_message_is_handed_on_once_and_in_order(steps: list[tuple[object, ...]]) -> None:
    pair = Pair()
    for number, step in enumerate(steps):
        match step:
            case ("say", str(name)):
                pair.say(name, said(number))
            case ("beat", str(name)):
                pair.say(name, Heartbeat())
            case ("carry", str(name), int(many)):
                pair.carry(name, many)
            case ("reset", int(left), int(right)):
                pair.reset((left, right))
            case ("wait", float(seconds)):
                pair.now += seconds
    pair.settle()
    assert pair.of("role") == pair.sent["coordinator"]
    assert pair.of("coordinator") == pair.sent["role"]
    assert all(not end._kept for end in pair.ends.values())


def test_a_connection_that_holds_costs_nothing() -> None:
    pair = Pair()
    for number in range(5):
        pair.say("coordinator", said(number))
        pair.say("role", said(-number))
    pair.say("coordinator", Heartbeat())
    pair.carry("coordinator")
    (*_, answer) = pair.wires["role"]
    assert CODEC.decode(answer[:2]) == Heartbeat()
    assert len(pair.wires["role"]) == 6
    pair.carry("role")
    assert not pair.wires["coordinator"]


def test_a_heartbeat_overtakes_nothing() -> None:
    """What it says of what was sent before it would not be true."""
    pair = Pair()
    pair.say("coordinator", said(1))
    pair.reset((1, 0))
    pair.say("coordinator", Heartbeat(leases_until=9))
    pair.carry("coordinator")
    assert pair.heard["role"] == []
    pair.carry("role")
    pair.say("coordinator", Heartbeat(leases_until=9))
    pair.carry("coordinator")
    assert pair.heard["role"] == [said(1), Heartbeat(leases_until=9)]


def test_who_asks_in_vain_asks_ever_more_seldom() -> None:
    pair = Pair()
    pair.say("coordinator", said(1))
    pair.reset((1, 0))
    asked = 0
    for _ in range(600):  # A minute.
        pair.say("coordinator", Heartbeat())
        pair.carry("coordinator")
        asked += sum(CODEC.decode(f[:2]) == Missing() for f in pair.wires["role"])
        pair.wires["role"].clear()
        pair.now += 0.1
    assert 5 <= asked <= 8


def test_what_was_just_sent_again_is_not_sent_again() -> None:
    pair = Pair()
    pair.say("coordinator", said(1))
    place = DeliveryHeader(KEY, 0, 0)
    end = pair.ends["coordinator"]
    assert [len(end.accept(place, Missing())[1]) for _ in range(3)] == [1, 0, 0]
    pair.now += ASK_AGAIN_S
    assert len(end.accept(place, Missing())[1]) == 1


def test_another_coordinator_begins_anew() -> None:
    """What its predecessor said last is no part of what it says."""
    pair = Pair()
    for number in range(3):
        pair.say("coordinator", said(number))
        pair.say("role", said(-number))
    pair.carry("coordinator")
    pair.reset((0, 3))
    pair.say("role", said(5))  # A Hello.
    pair.ends["coordinator"] = Delivery(CODEC, key=KEY + 1, seen=4, clock=lambda: pair.now)
    pair.wires["role"].clear()
    pair.say("coordinator", said(7))
    pair.say("role", said(8))
    pair.settle()
    assert pair.of("role") == [said(0), said(1), said(2), said(7)]
    assert pair.of("coordinator") == [said(8)]


def test_a_place_of_another_delivery_lets_go_of_nothing() -> None:
    end = Delivery(CODEC, key=KEY)
    end.send(said(1))
    end.accept(DeliveryHeader(KEY - 1, 0, 9), Heartbeat())
    assert len(end.accept(DeliveryHeader(KEY, 0, 0), Missing())[1]) == 1
    end.accept(DeliveryHeader(KEY, 0, 1), Heartbeat())
    assert not end._kept


def test_what_cannot_be_read_is_passed_over_and_not_asked_for() -> None:
    end = Delivery(CODEC, key=KEY)
    assert end.accept(DeliveryHeader(KEY, 1, 0), None) == (True, [])
    assert end.accept(DeliveryHeader(KEY, 2, 0), said(2)) == (True, [])


def test_who_reads_nothing_is_sent_no_more() -> None:
    end = Delivery(CODEC, key=KEY, most=2)
    assert end.send(said(1))
    assert end.send(said(2))
    assert end.send(said(3)) is None
    assert end.send(Heartbeat())
    end.accept(DeliveryHeader(KEY, 0, 1), Heartbeat())
    assert end.send(said(3))


@pytest.mark.parametrize("frame", [b"", b"12345678", bytes(23), bytes(25)])
def test_a_place_of_another_size_is_none(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="24 bytes"):
        DeliveryHeader.of(frame)
