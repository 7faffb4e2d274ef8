"""A store of another format: one line that names both formats and what to do, nothing touched."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import FormatError
from headrace.protocol.records.record_types import RECORD_FORMAT
from headrace.run_files.run_folder import CHECKPOINT_FORMAT, manifest_text
from headrace_cli.cli import main
from storage.database.engine import DATABASE_VERSION, SQLITE_NAME
from storage.journal.diagnostics import DIAGNOSTICS_FORMAT
from storage.journal.record_batches import FIRST_ROW
from storage.journal.segments import SegmentWriter, read_batches
from storage.run_store import RunStore
from tests.storage.lives import run_by_hand, write_whole

KNOWN = {
    "journal": RECORD_FORMAT, "diagnostics": DIAGNOSTICS_FORMAT, "schema": DATABASE_VERSION,
    "rows": RECORD_FORMAT, "checkpoint": CHECKPOINT_FORMAT,
}  # fmt: skip
COMMANDS = (
    "audit run", "audit run --repair", "train --resume run", "show run",
    "export run tokens --out {}", "export run trajectories --out {}",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whole(tmp_path_factory.mktemp("whole") / "run", run_by_hand())


def of_format(run_dir: Path, what: str, number: str) -> None:
    """Let a part of a run say that it is of another format; "": nothing, as the first one did. Its
    segments had no digests, its manifests none either."""
    if what in ("journal", "diagnostics"):
        batches = list(read_batches(run_dir / what))
        shutil.rmtree(run_dir / what)
        said = {b"run_id": b"run"} | ({b"format": number.encode()} if number else {FIRST_ROW: b"0"})
        schema: pa.Schema = batches[0].schema.with_metadata(said)
        if number:
            writer = SegmentWriter(run_dir / what, schema, segment_bytes=2**20)
            for batch in batches:
                writer.append(batch.replace_schema_metadata(said))
            writer.close()
            return
        (run_dir / what).mkdir()
        with pa.ipc.new_stream(str(run_dir / what / "segment-000001.arrow"), schema) as stream:
            for batch in batches:
                stream.write_batch(batch.replace_schema_metadata(said))
    elif what == "checkpoint":
        (path,) = run_dir.glob("checkpoints/step_*/manifest.json")
        manifest = json.loads(path.read_text())
        del manifest["format"], manifest["sha256"]
        later = manifest_text(manifest | {"format": int(number or 1)})
        path.write_text(later if number else json.dumps(manifest))
    else:
        column = "alembic_version set version_num" if what == "schema" else "projection set format"
        with closing(sqlite3.connect(run_dir / SQLITE_NAME)) as base, base:
            base.execute(f"update {column} = {int(number or 1)!r}")


def files(root: Path) -> dict[str, bytes]:
    """All but SQLite's own, which a reader makes too."""
    found = (path for path in root.rglob("*") if path.is_file())
    return {
        str(path): path.read_bytes() for path in found if not path.name.endswith(("-wal", "-shm"))
    }


@pytest.mark.parametrize("number", ["", "99"], ids=["the first", "a later one"])
@pytest.mark.parametrize("what", KNOWN)
def test_another_format_is_refused(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, number: str
) -> None:
    run_dir = shutil.copytree(whole, tmp_path / "run")
    of_format(run_dir, what, number)
    before = files(tmp_path)
    said = f"has format {number or 1}, and this version of Headrace reads format {KNOWN[what]} "
    for command in COMMANDS:
        if what == "checkpoint" and command.split()[0] in ("show", "export"):
            continue  # they do not read it
        words = command.format(tmp_path / "out.parquet").split()
        assert main([*words, "--root", str(tmp_path)]) == 2, command
        shown = capsys.readouterr()
        assert said in shown.err
        assert len(shown.err.splitlines()) == 1
        assert files(tmp_path) == before, command
    with pytest.raises(FormatError, match="use the version that wrote it"):
        RunStore.open(run_dir)
    assert {path: data for path, data in files(tmp_path).items() if ".writer" not in path} == {
        path: data for path, data in before.items() if ".writer" not in path
    }
