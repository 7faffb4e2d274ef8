"""Which errors of a disk pass, what they are called, and waiting until they have passed."""

import errno
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from headrace.errors import StorageBlockedError
from headrace.host import disk
from headrace.host.disk import lack_of_room, until_written, writing
from tests.small_disk import small_disk


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, r"^room for 1,234 bytes in /tmp, and [\d,]+ are free$"),
        (errno.EDQUOT, r"^room for 1,234 bytes in /tmp, and [\d,]+ are free$"),
        (errno.EROFS, r"^/tmp, which is read-only, to take 1,234 bytes$"),
        (errno.EACCES, r"^/tmp, which may not be written, to take 1,234 bytes$"),
    ],
)
def test_errors_that_pass_are_named_with_place_and_bytes(number: int, text: str) -> None:
    for error in (OSError(number, "x"), Exception(f"I/O error: x (os error {number})")):
        with pytest.raises(StorageBlockedError, match=text), writing(Path("/tmp"), 1234):
            raise error


@pytest.mark.parametrize("error", [OSError(errno.EIO, "x"), ValueError("28"), OSError("no number")])
def test_other_errors_are_not_waited_for(error: Exception) -> None:
    with pytest.raises(type(error)), writing(Path("/tmp"), 1):
        raise error


def test_a_place_that_is_still_to_be_made() -> None:
    assert lack_of_room(Path("/tmp/not/there/yet"), 1) is None
    assert "room for" in str(lack_of_room(Path("/tmp/not/there/yet"), 1 << 60))


def test_a_write_waits_for_room_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real full disk, and a library whose error is no OSError; nothing is left of what failed."""
    monkeypatch.setattr(disk, "RETRY_S", 0.01)
    told: list[str] = []
    weights = {"w": torch.ones(100_000)}
    with small_disk(tmp_path / "disk", "1m") as small:
        small.fill()
        path = small.path / "w.safetensors"

        def later() -> None:
            while not told:
                time.sleep(0.01)
            time.sleep(0.1)
            assert not path.exists()
            small.free()

        thread = threading.Thread(target=later)
        thread.start()
        # That it says it needs nothing makes it find out by trying.
        until_written(lambda: save_file(weights, path), small.path, 0, tell=told.append)
        thread.join()
        assert path.stat().st_size > 400_000
    assert told == [f"room for 0 bytes in {small.path}, and 0 are free", ""]


def test_a_write_that_cannot_fit_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "RETRY_S", 0.01)
    free = iter([10.0, 10.0, 10.0, 10.0, 1000.0, 1000.0])
    monkeypatch.setattr(disk, "_free", lambda _: next(free))
    calls, told = [], list[str]()
    until_written(lambda: calls.append(1), tmp_path, 100, tell=told.append)
    assert calls == [1]
    assert told == [f"room for 100 bytes in {tmp_path}, and 10 are free", ""]
    monkeypatch.setattr(disk, "RETRY_FULL_S", 0.0)
    monkeypatch.setattr(disk, "_free", lambda _: 0.0)
    until_written(lambda: calls.append(1), tmp_path, 100, tell=told.append)
    assert calls == [1, 1]


def test_a_slow_write_is_told_while_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words come while the write runs, and not behind its end."""
    monkeypatch.setattr(disk, "SLOW_S", 0.02)
    told: list[str] = []

    def write() -> int:
        while not told:
            time.sleep(0.01)
        assert told == [f"the disk of {tmp_path} to take 9 bytes, not done in 0 s"]
        return 3

    assert until_written(write, tmp_path, 9, tell=told.append) == 3
    assert told[1:] == [""]
    monkeypatch.setattr(disk, "SLOW_S", 60.0)
    assert until_written(lambda: 4, tmp_path, 9, tell=told.append) == 4
    assert len(told) == 2
