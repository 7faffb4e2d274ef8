"""What rank 0 reports of an update fits into a message."""

import logging

import numpy as np
import pytest

from headrace.protocol.messages.control import UpdateDone
from headrace.protocol.messages.diagnostics import COLUMN_NAMES, TokenDiagnostics
from headrace.protocol.transport.codec import message_codec
from learner.process.trainer import join_reports


def report(windows: range) -> UpdateDone:
    diagnostics = [
        TokenDiagnostics(
            window_id=w, trajectory_id=w, start=0, lam=1.0,
            columns={name: np.zeros(500, np.float32) for name in COLUMN_NAMES},
        )
        for w in windows
    ]  # fmt: skip
    return UpdateDone(batch_id=7, update=7, lineage=1, metrics={"x": 1.0}, diagnostics=diagnostics)


def test_the_diagnostics_of_all_ranks_come_back() -> None:
    made = join_reports([report(range(3)), report(range(3, 5))], max_bytes=1 << 20)
    assert [d.window_id for d in made.diagnostics] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("max_bytes", [100_000, 200_000])
def test_what_does_not_fit_is_left_out_and_said(
    max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The update itself is never lost."""
    with caplog.at_level(logging.WARNING):
        made = join_reports([report(range(30)), report(range(30, 60))], max_bytes=max_bytes)
    assert 0 < len(made.diagnostics) < 60
    left_out = 60 - len(made.diagnostics)
    assert f"{left_out} of 60 windows left out of update 7" in caplog.text
    assert message_codec(max_bytes=max_bytes).encode(made)
