"""A disk that takes nothing: what was acknowledged stays, the rest waits, and nothing is torn."""

import errno
import os
import shutil
from itertools import product
from pathlib import Path

import pytest

from headrace.errors import StorageBlockedError
from headrace.protocol.records.record_types import Incident, Record
from storage import run_store
from storage.journal.record_batches import SegmentWalk
from storage.journal.segments import segment_paths
from storage.journal.store import Journal
from storage.run_store import RunStore
from tests.small_disk import small_disk
from tests.storage.journal.test_store import everything, journal
from tests.storage.samples import run_config, small_run
from tests.storage.test_run_store import dump, settled


def incident(text: str) -> Incident:
    return Incident(at=1.0, level="info", kind="k", text=text)


def rows_of(run_dir: Path, name: str) -> int:
    return sum(SegmentWalk(path).done().rows for path in segment_paths(run_dir / name))


def test_a_store_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every append is tried on the full disk, some of them often; with room again it is written
    once, diagnostics too, and SQL catches up."""
    monkeypatch.setattr(run_store, "CATCH_UP_S", 0.0)
    with small_disk(tmp_path / "disk", "8m") as disk:
        run_dir = disk.path / "run"
        store = RunStore.create(run_dir, "run", run_config())
        for records in small_run():
            disk.fill()
            before = store.end
            blocked = 0
            for _ in range(3):
                try:
                    store.append(records)  # the last block of a file may have room for it
                    break
                except StorageBlockedError:
                    blocked += 1
                    assert store.end == before
            disk.free()
            if blocked == 3:
                store.append(records)
        big: list[Record] = [incident("x" * 100_000)]
        disk.fill()
        for _ in range(3):
            with pytest.raises(StorageBlockedError, match=r"room for 10.,... bytes in .*/journal"):
                store.append(big)
        disk.free()
        store.append(big)
        store.close()
        assert store.behind == ""
        reference = RunStore.create(tmp_path / "whole" / "run", "run", run_config())
        for records in [*small_run(), big]:
            reference.append(records)
        reference.close()
        assert dump(run_dir) == dump(tmp_path / "whole" / "run")
        whole = tmp_path / "whole" / "run"
        for name in ("journal", "diagnostics"):
            assert rows_of(run_dir, name) == rows_of(whole, name), name


def test_sql_that_has_no_room_follows_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal goes on elsewhere; why SQL does not follow is told, it is not tried again with
    every commit, and no commit waits for it any more."""
    with small_disk(tmp_path / "disk", "6m") as disk:
        run_dir = disk.path / "run"
        (tmp_path / "journal").mkdir()
        run_dir.mkdir()
        (run_dir / "journal").symlink_to(tmp_path / "journal")
        config = run_config(storage={"token_diagnostics": False})
        store = RunStore.create(run_dir, "run", config)
        disk.fill()
        many: list[Record] = [incident(f"{n} {'x' * 1000}") for n in range(200)]
        store.append(many)
        assert "does not follow the journal for now" in store.behind
        assert str(run_dir) in store.behind
        tries: list[int] = []
        catch_up = store._catch_up

        def counted() -> None:
            tries.append(1)
            catch_up()

        monkeypatch.setattr(store, "_catch_up", counted)
        store.append(many)
        store.append(many)
        assert tries == []
        disk.free()
        store._catch_up_at = 0.0
        store.append(many)
        settled(store)
        assert tries == [1]
        store.close()
        assert len(dump(run_dir)["events"]) == 800


def test_a_journal_is_opened_on_a_full_disk(tmp_path: Path) -> None:
    """There is no room for the seal behind the last batch of the coordinator that died: its file
    fills its blocks."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        folder = disk.path / "journal"
        for size, rows in product(range(0, 4096, 64), range(1, 9)):
            shutil.rmtree(folder, ignore_errors=True)
            killed = journal(folder)
            for _ in range(rows):
                killed.append([incident("x" * size)])
            if segment_paths(folder)[0].stat().st_size % 4096 == 0:
                break
            killed.close()
        assert segment_paths(folder)[0].stat().st_size % 4096 == 0
        disk.fill()
        again = journal(folder)
        assert again.next_offset == rows
        assert len(everything(folder)) == rows
        with pytest.raises(StorageBlockedError):
            again.append([incident("later" * 2000)])
        disk.free()
        again.append([incident("later")])
        again.close()
        assert len(everything(folder)) == rows + 1


@pytest.mark.parametrize("length", ["first", "later"])
def test_a_disk_that_became_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    """In the middle of a write, so that not even the half that was written can be taken away before
    it can be written again."""
    writer = journal(tmp_path)
    if length == "later":
        writer.append([incident("before")])
    real = os.write

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    def write_half(descriptor: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", refuse)
        return real(descriptor, data[: len(data) // 2])

    with monkeypatch.context():
        monkeypatch.setattr(os, "ftruncate", refuse)
        monkeypatch.setattr(Path, "unlink", refuse)
        for write in (write_half, refuse):
            monkeypatch.setattr(os, "write", write)
            with pytest.raises(
                StorageBlockedError, match=f"{tmp_path}, which is read-only, to take"
            ):
                writer.append([incident("now")])
            everything(tmp_path)  # A reader only ends there.
    monkeypatch.undo()
    writer.append([incident("now")])
    writer.close()
    texts = [record.text for _, record in everything(tmp_path) if isinstance(record, Incident)]
    assert texts == ["before", "now"][length == "first" :]


def test_another_error_of_the_disk_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer: Journal = journal(tmp_path)

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            writer.append([incident("now")])
    writer.append([incident("now")])
    writer.close()
    assert len(everything(tmp_path)) == 1


@pytest.mark.parametrize("kib", [16, 128, 256])
def test_a_store_that_sql_has_no_room_for_is_opened_later(tmp_path: Path, kib: int) -> None:
    """Wherever in the making of its tables the disk was full."""
    with small_disk(tmp_path / "disk", f"{kib}k") as disk:
        run_dir = disk.path / "run"
        with pytest.raises(StorageBlockedError, match=f"room for .* bytes in {run_dir}"):
            RunStore.create(run_dir, "run", run_config())
        disk.change("size=8m")
        RunStore.create(run_dir, "run", run_config()).close()
