"""Every escape is held under every layer that this machine lets be had."""

import asyncio

import pytest

from sandbox.escape_tests import escapes
from sandbox.escape_tests.escapes import EscapeEnvironment
from sandbox.interpreter import interpreter
from sandbox.limits import Limits
from tests.sandbox.layers import each_layer, need


def test_there_are_many_and_each_says_what_it_is_after() -> None:
    assert len(escapes.names()) >= 30
    texts = [(escapes.FOLDER / f"{name}.txt").read_text("ascii") for name in escapes.names()]
    meanings = [text.splitlines()[0].removeprefix("#").strip() for text in texts]
    assert all(text.startswith("#") for text in texts)
    assert all(meanings)
    assert len(set(meanings)) == len(meanings)


@pytest.mark.slow
@each_layer
def test_every_escape_is_held(layer: str) -> None:
    outcomes = asyncio.run(escapes.try_all(need(layer)))
    assert {each.name: each.escaped for each in outcomes if each.escaped} == {}
    assert sorted(each.name for each in outcomes) == escapes.names()


def test_harm_is_noticed() -> None:
    """Each program is run here, where nothing holds it, by what it says it does."""
    with EscapeEnvironment() as environment:
        space: dict[str, object] = {}
        exec(environment.facts(Limits(), interpreter()), space)
        assert environment.harm() == []
        for name, does in (
            ("files_write", "__import__('os').truncate(VICTIM, 1)"),
            ("network_tcp", "__import__('socket').create_connection(('127.0.0.1', TCP)).close()"),
            ("signals_bystander", "__import__('os').kill(BYSTANDER, 9)"),
        ):
            exec(does, space)
            assert name in escapes.names()
        import time

        while "the bystander ended with -9" not in environment.harm():
            time.sleep(0.01)
