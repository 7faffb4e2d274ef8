"""`headrace replay`: an update made again agrees with what was stored; whatever was changed since
is found."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from headrace.protocol.messages.diagnostics import TokenDiagnostics
from headrace.protocol.records.record_types import BatchTaken, Record, UpdateCommitted
from headrace.run_files.checked_lines import checked_line, whole_lines
from headrace_cli.cli import main
from headrace_cli.commands.inspection.replay import ReplayRow, named_rows, quantity, row_of
from storage.journal.diagnostics import DiagnosticsReader
from storage.journal.store import read_journal
from storage.run_store import RunStore
from tests.headrace_cli.commands.trained_run import UPDATES, make
from tests.integration.runs import headrace

REPLAYED = 3
Change = Callable[[Record], Record]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T-PPO run of a few updates."""
    return make(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GRPO run of a few updates."""
    return make(
        tmp_path_factory.mktemp("grouped"),
        algorithm={"advantages": {"kind": "group"}, "value": None},
        schedule={"num_generations": 4, "unit": "group", "window": 12},
    )


@pytest.fixture(scope="module")
def of_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T-PPO run of a learner with two ranks."""
    return make(tmp_path_factory.mktemp("ranks"), learner={"ranks": 2})


def told(
    capsys: pytest.CaptureFixture[str], run_dir: Path, *arguments: str, update: int = REPLAYED
) -> tuple[int, dict[str, Any]]:
    """The exit code and what it says as JSON."""
    capsys.readouterr()
    code = main(["replay", str(run_dir), "--update", str(update), "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def by_name(said: dict[str, Any], source: str = "store") -> dict[str, Any]:
    return {q["name"]: q for q in said["quantities"] if q["source"] == source}


@pytest.mark.parametrize("update", range(1, UPDATES + 1))
def test_an_update_agrees_with_what_was_stored(
    run_dir: Path, capsys: pytest.CaptureFixture[str], update: int
) -> None:
    code, said = told(capsys, run_dir, "--store-only", update=update)
    assert code == 0, said
    found = by_name(said)
    assert found["masks"]["compared"] >= found["advantages"]["compared"] > 0
    assert found["lambda"]["compared"] == said["windows"] - _all_masked(run_dir, update)
    assert found["returns"]["compared"] > 0
    assert found["figures"]["compared"] > 10
    assert all(q["largest"] == 0.0 for q in found.values()), "to the bit"


def _all_masked(run_dir: Path, update: int) -> int:
    """Windows of which nothing went to the learner."""
    (taken,) = [r for r in records_of(run_dir) if isinstance(r, BatchTaken) and r.update == update]
    rows = DiagnosticsReader(run_dir / "diagnostics").read(
        [(0, update, window.window_id) for window in taken.windows]
    )
    return len(taken.windows) - len(rows)


def test_groups_agree_too(grouped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = told(capsys, grouped, "--store-only")
    assert code == 0, said
    assert by_name(said)["advantages"]["compared"] > 0
    assert "critic/values/mean" not in str(said)


def test_an_update_of_two_ranks_agrees(
    of_two_ranks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = told(capsys, of_two_ranks, "--store-only")
    assert code == 0, said
    found = by_name(said)
    trained = said["windows"] - _all_masked(of_two_ranks, REPLAYED)
    assert found["ranks"]["compared"] == trained + said["value_trajectories"]
    assert found["advantages"]["compared"] > 0
    assert all(q["differing"] == 0 for q in found.values())


def test_a_window_that_another_rank_trained_is_named(
    of_two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = changed(of_two_ranks, tmp_path, lambda record: record)
    (copy / "applied").mkdir()
    moved = 0
    for rank in (0, 1):
        path = of_two_ranks / "applied" / f"rank-{rank}.jsonl"
        lines = list(whole_lines(path))
        (own,) = (line for line in lines if line["update"] == REPLAYED)
        if rank == 0:
            moved = own["windows"].pop()
        else:
            own["windows"].append(moved)
        (copy / "applied" / path.name).write_bytes(b"".join(map(checked_line, lines)))
    code, said = told(capsys, copy, "--store-only")
    assert code == 1
    ranks = by_name(said)["ranks"]
    assert [(d["whose"], d["stored"], d["recomputed"]) for d in ranks["worst"]] == [
        (f"window {moved}", 1, 0)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_come_to_the_same_weights(
    of_two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: int
) -> None:
    """Each from its own part of the optimizer's state, where that is cut."""
    cut = {"ranks": 2, "zero_stage": stage}
    run_dir = make(tmp_path, learner=cut) if stage else of_two_ranks
    code, said = told(capsys, run_dir, update=UPDATES)
    assert code == 0, said
    found = by_name(said, "models")
    assert found["learner_logprobs"]["compared"] == by_name(said)["advantages"]["compared"]
    assert found["weights of the policy"]["compared"] > 10_000
    assert found["weights of the critic"]["compared"] > 10_000
    assert all(q["largest"] < 1e-6 for q in found.values())
    assert said["not_recomputed"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("update", [1, UPDATES])
def test_with_the_models_it_comes_to_the_same_weights(run_dir: Path, update: int) -> None:
    """In a process of its own, as a user calls it: update 1 from the model that the run began with,
    the last one from its checkpoint."""
    code, said = called(run_dir, update)
    assert code == 0, said
    found = by_name(said, "models")
    assert found["learner_logprobs"]["compared"] > 0
    assert found["figures"]["compared"] > 30
    assert all(q["largest"] < 1e-6 for q in found.values())
    assert said["device"] == "cpu"
    if update == UPDATES:
        assert found["weights of the policy"]["compared"] > 10_000
        assert found["weights of the critic"]["compared"] > 10_000
        assert said["not_recomputed"] == {}
    else:
        assert "no checkpoint of update 1" in said["not_recomputed"]["weights"]


@pytest.mark.slow
def test_a_copy_without_its_starting_model_is_computed_from_a_checkpoint(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = changed(run_dir, tmp_path, lambda record: record)
    resolved = json.loads((copy / "resolved.json").read_text())
    resolved["model"]["path"] = "/nowhere"
    (copy / "resolved.json").write_text(json.dumps(resolved))
    code, said = told(capsys, copy, update=UPDATES)
    assert code == 0
    assert by_name(said, "models")["weights of the policy"]["largest"] < 1e-6
    code, said = told(capsys, copy, update=1)
    assert code == 0
    assert "is not at /nowhere" in str(said["not_recomputed"])


@pytest.mark.slow
def test_other_weights_are_found(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run says that it trained with another learning rate than it did."""
    copy = changed(run_dir, tmp_path, lambda record: record)
    resolved = json.loads((copy / "resolved.json").read_text())
    resolved["learner"]["policy"]["lr"] = 1e-2
    (copy / "resolved.json").write_text(json.dumps(resolved))
    code, said = told(capsys, copy, update=UPDATES)
    assert code == 1
    found = by_name(said, "models")
    assert found["weights of the policy"]["differing"] > 1000
    assert found["weights of the critic"]["differing"] == 0
    assert "actor/lr" in [d["whose"] for d in found["figures"]["worst"]]
    assert all(q["differing"] == 0 for q in by_name(said).values())


def called(run_dir: Path, update: int) -> tuple[int, dict[str, Any]]:
    done = headrace("replay", str(run_dir), "--json", "--update", str(update))
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


# -- what was changed ------------------------------------------------------------------------------


def records_of(run_dir: Path) -> list[Record]:
    return [record for batch in read_journal(run_dir / "journal") for _, record in batch]


def changed(
    run_dir: Path, root: Path, change: Change, tamper: Callable[[TokenDiagnostics], object] = id
) -> Path:
    """The run written again by storage, so that its checksums are right; `tamper` sees a window's
    diagnostics, in arrays that can be written to."""
    from headrace.run_files.run_folder import read_config

    reader = DiagnosticsReader(run_dir / "diagnostics")
    copy = root / "run-1"
    store = RunStore.create(copy, "run-1", read_config(run_dir))
    records: list[Record] = []
    for record in records_of(run_dir):
        if isinstance(record, UpdateCommitted):
            keys = [(record.lineage, record.update, key) for key in record.window_ids]
            rows = [_writable(row) for row in reader.read(keys).values()]
            if record.update == REPLAYED:
                for row in rows:
                    tamper(row)
            record = replace(record, diagnostics=rows)
        records.append(change(record))
    (copy / "checkpoints").symlink_to(run_dir / "checkpoints")
    store.append(records)
    store.close()
    return copy


def _writable(row: TokenDiagnostics) -> TokenDiagnostics:
    return replace(row, columns={name: column.copy() for name, column in row.columns.items()})


def test_a_value_that_was_changed_is_found_where_it_is(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token in front of it and those before differ most."""
    seen: list[tuple[int, int]] = []

    def tamper(row: TokenDiagnostics) -> None:
        if not seen and len(row.columns["values"]) > 2:
            row.columns["values"][1] += 0.5
            seen.append((row.trajectory_id, row.start))

    copy = changed(run_dir, tmp_path, lambda record: record, tamper)
    code, said = told(capsys, copy, "--store-only")
    assert code == 1
    advantages = by_name(said)["advantages"]
    assert advantages["largest"] > 0.01
    first = advantages["worst"][0]
    assert first["whose"] == f"trajectory {seen[0][0]}"
    assert first["place"] in (seen[0][1], seen[0][1] + 1)
    assert first["stored"] != first["recomputed"]
    assert by_name(said)["figures"]["differing"] > 0, "the figures of the values, too"
    assert by_name(said)["returns"]["differing"] == by_name(said)["lambda"]["differing"] == 0
    assert main(["replay", str(copy), "--update", str(REPLAYED), "--store-only"]) == 1
    printed = capsys.readouterr().out
    assert f"trajectory {seen[0][0]}" in printed
    assert printed.splitlines()[-1].startswith("DIFFERS: advantages")


def test_an_advantage_that_was_changed_is_the_only_one(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[float] = []

    def tamper(row: TokenDiagnostics) -> None:
        if not done:
            row.columns["advantages"][0] += 0.01
            done.append(float(row.columns["advantages"][0]))

    copy = changed(run_dir, tmp_path, lambda record: record, tamper)
    _, said = told(capsys, copy, "--store-only")
    advantages = by_name(said)["advantages"]
    assert advantages["differing"] == 1
    assert advantages["worst"][0]["stored"] == pytest.approx(done[0])


def test_masks_that_were_changed_are_named(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records say that a token was left out as overlong, and the rules know of none."""

    def change(record: Record) -> Record:
        if isinstance(record, BatchTaken) and record.update == REPLAYED:
            windows = list(record.windows)
            for i, window in enumerate(windows):
                runs = [replace(run, reason="overlong") for run in window.masked]
                windows[i] = replace(window, masked=runs)
            return replace(record, windows=windows)
        return record

    copy = changed(run_dir, tmp_path, change)
    code, said = told(capsys, copy, "--store-only")
    assert code == 1
    masks = by_name(said)["masks"]
    assert masks["differing"] > 0
    worst = masks["worst"][0]
    assert (worst["stored"], worst["recomputed"]) == ("overlong", "boundary_mask")


def test_a_figure_that_was_changed_is_named(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(record: Record) -> Record:
        if isinstance(record, UpdateCommitted) and record.update == REPLAYED:
            return replace(record, metrics=record.metrics | {"critic/returns/mean": 7.0})
        return record

    copy = changed(run_dir, tmp_path, change)
    code, said = told(capsys, copy, "--store-only")
    assert code == 1
    figures = by_name(said)["figures"]
    assert [d["whose"] for d in figures["worst"]] == ["critic/returns/mean"]
    assert figures["worst"][0]["stored"] == 7.0


def test_without_diagnostics_it_says_what_is_missing(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(record: Record) -> Record:
        return replace(record, diagnostics=[]) if isinstance(record, UpdateCommitted) else record

    copy = changed(run_dir, tmp_path, without)
    code, said = told(capsys, copy, "--store-only")
    assert code == 0
    assert "storage.token_diagnostics" in said["not_recomputed"]["advantages"]
    assert by_name(said)["advantages"]["compared"] == 0
    assert by_name(said)["masks"]["compared"] > 0
    assert by_name(said)["figures"]["compared"] > 0, "those of rewards and ages"


@pytest.mark.parametrize(
    ("algorithm", "what", "why"),
    [
        ({"advantages": {"kind": "egae", "boundary": "bootstrap"}}, "advantages", "bootstrap"),
        ({"kl": {"coef": 0.1, "where": "reward"}}, "returns", "the reference's logprobs"),
        ({"value": {"gae_lambda_value": 0.9}}, "value targets", "gae_lambda_value"),
    ],
)
@pytest.mark.slow
def test_what_rests_on_numbers_that_nobody_stored_is_said(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    algorithm: dict[str, Any],
    what: str,
    why: str,
) -> None:
    base = {"advantages": {"kind": "egae"}, "value": {}}
    code, said = told(capsys, make(tmp_path, algorithm=base | algorithm), "--store-only")
    assert code == 0, said
    assert why in said["not_recomputed"][what]


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["0", "99"])
def test_an_update_that_there_is_not_is_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], update: str
) -> None:
    assert main(["replay", str(run_dir), "--update", update]) == 2
    line = capsys.readouterr().err
    assert line == (f"error: there is no update {update} in this run: its last one is {UPDATES}\n")


@pytest.mark.parametrize("tolerance", ["-1", "nan"])
def test_a_tolerance_that_is_none_is_one_line(
    run_dir: Path, capsys: pytest.CaptureFixture[str], tolerance: str
) -> None:
    command = ["replay", str(run_dir), "--update", "1", f"--tolerance={tolerance}"]
    assert main(command) == 2
    assert capsys.readouterr().err == "error: --tolerance is a number from 0 on\n"


def test_a_run_that_there_is_not_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "nowhere", "--update", "1", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- comparing -------------------------------------------------------------------------------------


def row(stored: Iterable[float], recomputed: Iterable[float]) -> ReplayRow:
    return ReplayRow("x", 10, np.array([*stored]), np.array([*recomputed]))


def test_distances_are_shares_of_large_numbers_only() -> None:
    found = quantity("q", [row([1000, 0.1], [1000.5, 0.1004])], source="store", tolerance=4.5e-4)
    assert (found.compared, found.differing) == (2, 1)
    assert found.largest == pytest.approx(5e-4)
    assert [d.place for d in found.worst] == [10]


def test_what_only_one_account_knows_differs_unless_it_has_a_reason() -> None:
    nan = float("nan")
    both = [row([1, nan, 3, nan], [1, 2, nan, nan])]
    strict = quantity("q", both, source="store", tolerance=0.0)
    assert (strict.compared, strict.differing, strict.unmade) == (1, 2, 0)
    assert strict.worst[0].stored is None
    lenient = quantity("q", both, source="store", tolerance=0.0, lacks=True)
    assert (lenient.compared, lenient.differing, lenient.unmade) == (1, 1, 1)
    assert strict.largest == 0.0, "a distance needs two numbers"


def test_infinities_that_agree_agree() -> None:
    inf = float("inf")
    assert quantity("q", [row([inf], [inf])], source="s", tolerance=0.0).differing == 0
    assert quantity("q", [row([inf], [1.0])], source="s", tolerance=0.0).differing == 1


def test_lists_are_compared_bin_by_bin() -> None:
    rows = named_rows({"a": [1.0, None, 3.0], "b": 2.0, "c": 1.0}, {"a": [1.0, None], "b": 2.0})
    assert [r.whose for r in rows] == ["a", "b"]
    found = quantity("figures", rows, source="store", tolerance=0.0)
    assert (found.compared, found.differing) == (2, 1)
    assert found.worst[0].place == 2


def test_accounts_of_different_lengths_differ_behind_the_shorter_one() -> None:
    made = row_of("x", 5, np.array([1.0, 2.0]), np.array([1.0], np.float32))
    found = quantity("q", [made], source="store", tolerance=0.0)
    assert (found.compared, found.differing, found.worst[0].place) == (1, 1, 6)
