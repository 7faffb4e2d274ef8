"""The protocol's page names all that is said."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from headrace.protocol import token_spans
from headrace.protocol.messages import batches, control, diagnostics

PAGE = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
KINDS = [
    kind
    for module in (control, batches, token_spans, diagnostics)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, msgspec.Struct)
    and kind.__module__ == module.__name__
    and kind is not control.Message
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_and_every_part_of_one_is_on_the_page(kind: type) -> None:
    assert f"`{kind.__name__}`" in PAGE


def test_every_message_is_in_the_union_that_the_codec_reads() -> None:
    of_wire = {kind for kind in KINDS if issubclass(kind, control.Message)}
    assert of_wire == set(get_args(control.AnyMessage))


def test_the_page_is_of_this_version() -> None:
    assert f"Version {control.PROTOCOL_VERSION}." in PAGE
