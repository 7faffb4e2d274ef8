"""Frames of the wire, whole, changed and made up: a message or ProtocolError, and a real
coordinator that goes on."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any, get_args

from hypothesis import event, given, settings
from hypothesis import strategies as st

from headrace.errors import ProtocolError
from headrace.protocol.messages import control as m
from headrace.protocol.transport.codec import message_codec
from headrace.protocol.transport.endpoints import identity_of
from tests.coordinator.stage import (
    GENERATOR,
    LEARNER,
    MONITOR,
    REWARD,
    Stage,
    assert_sound,
    body_of,
    endless,
    places,
    staged,
    with_value,
)
from tests.fuzz.damage import BYTES, PLAIN, WILD, damaged
from tests.headrace.protocol.strategies import structs

CODEC = message_codec(max_bytes=1 << 20)
KINDS = get_args(m.AnyMessage)
ENDING = (m.Command, m.Goodbye)
"""What ends a run, or a peer's part in it, when it is said by who may."""
HARMLESS = [kind for kind in KINDS if kind not in ENDING]
NAMES = (GENERATOR, REWARD, LEARNER, MONITOR, "generator-9")
ENDED = ("draining", "closing", "leaving", "closed")
MOST_SAID = 50


@st.composite
def revalued(
    draw: st.DrawFn, frames: list[bytes], values: st.SearchStrategy[Any] = WILD
) -> list[bytes]:
    """Frames with other values at one to three places, references to arrays among them."""
    for _ in range(draw(st.integers(1, 3))):
        body, raw = body_of(frames)
        if where := places(body, (str, int, float, type(None))):
            frames = [*with_value(body, draw(st.sampled_from(where)), draw(values)), raw]
    return frames


@st.composite
def broken(draw: st.DrawFn, frames: list[bytes]) -> list[bytes]:
    """Frames with damaged bytes."""
    return [draw(st.just(frame) | damaged(frame, BYTES)) for frame in frames]


@given(st.data())
@settings(max_examples=settings().max_examples * 5)
def test_frames_are_a_message_or_a_protocol_error(data: st.DataObject) -> None:
    """What was taken comes back from the wire as it was; a reason is no longer than a page."""
    whole = CODEC.encode(data.draw(st.sampled_from(KINDS).flatmap(structs)))
    frames = data.draw(st.one_of(st.just(whole), revalued(whole), revalued(whole), broken(whole)))
    try:
        message = CODEC.decode(frames)
    except ProtocolError as error:
        event("refused")
        reason = str(error)
    else:
        event("taken")
        again = CODEC.encode(message)
        assert CODEC.encode(CODEC.decode(again)) == again
        return
    assert len(reason) < 2000
    assert frames != whole


@given(st.data())
@settings(max_examples=settings().max_examples // 10)
def test_a_coordinator_goes_on_whatever_its_peers_say(data: st.DataObject) -> None:
    """And the journal gives the state that it has, all of which is in SQL."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(listen(data, Path(folder) / "run"))


async def listen(data: st.DataObject, run_dir: Path) -> None:
    async with staged(endless(), run_dir) as stage:
        for _ in range(data.draw(st.integers(1, MOST_SAID))):
            name, frames = said(data, stage)
            identity = stage.identities.get(name) or identity_of(name)
            event("taken" if await stage.send(identity, frames) else "refused")
            peers = stage.hub.peers
            all_there = peers.learner is not None and {GENERATOR, REWARD} <= set(peers.identities)
            if stage.coordinator.phases.phase in ENDED or stage.hub.failed or not all_there:
                break  # Who may end the run, or leave it, has done so.
    assert_sound(stage)


def said(data: st.DataObject, stage: Stage) -> tuple[str, list[bytes]]:
    """Who says what: what a peer would honestly say now, that by another, with other values or
    damaged bytes, or any message by anybody."""
    steps = (
        (GENERATOR, stage.chunks),
        (GENERATOR, stage.loaded),
        (REWARD, stage.scores),
        (LEARNER, stage.update),
        (LEARNER, stage.notice),
    )
    honest = [(name, told) for name, step in steps if (told := step()) is not None]
    how = data.draw(st.integers(0, 9))
    if how < 3 or not honest:
        kinds = KINDS if data.draw(st.integers(0, 99)) == 99 else HARMLESS
        message = data.draw(st.sampled_from(kinds).flatmap(structs))
        return data.draw(st.sampled_from(NAMES)), stage.codec.encode(message)
    name, message = data.draw(st.sampled_from(honest))
    frames = stage.codec.encode(message)
    match how:
        case 3 | 4 | 5:
            frames = data.draw(revalued(frames, PLAIN))
        case 6:
            frames = data.draw(broken(frames))
        case 7:
            name = data.draw(st.sampled_from(NAMES))
    return name, frames
