"""The benchmark of exports: a run that is in order, turns, and figures of whole processes."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.kit.synthetic_runs import make_run
from benchmarks.performance.export import line, main, shape, summary, turns_of
from storage.audit import audit_run
from storage.exports import export

BATCH = 128


def test_the_run_is_a_run_in_which_every_token_has_its_place(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", shape(tokens=2 * BATCH * 160 - 1, length=160))
    counted = audit_run(run_dir).counts
    assert counted["generated"] == 2 * BATCH * 160
    written = export(run_dir, "tokens", None, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert written.rows == table.num_rows == 2 * BATCH * 160
    assert {"token", "value", "return", "mask_reason", "reward"} <= set(table.column_names)
    assert table["value"].null_count == 0
    # The last window of each response has returns, and nothing of it is masked.
    assert table["return"].null_count == 2 * BATCH * 128
    assert sum(mask is not None for mask in table["mask_reason"].to_pylist()) == 2 * BATCH * 4


def test_ratios_are_of_the_same_turn() -> None:
    told = {
        "export": [{"cpu_s": s, "peak_mb": mb} for s, mb in ((2.0, 100.4), (4.0, 120.6))],
        "rewrite": [{"cpu_s": s, "peak_mb": 80.0} for s in (1.5, 2.0)],
    }
    found = summary(told)
    assert found["ratio"] == {"median": 0.625, "min": 0.5, "max": 0.75}
    assert found["peak_mb"] == 121
    text = line({"tokens": 64, "length": 32, **found})
    assert "export   3.00 s, rewrite   1.75 s, ratio 0.62 (0.50 to 0.75), peak 121 MB" in text


def test_both_arms_write_the_same_rows(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path / "run", shape(tokens=BATCH * 8, length=8))
    figures = turns_of(run_dir, tmp_path / "t.parquet", turns=1)
    assert {name: len(told) for name, told in figures.items()} == {"export": 1, "rewrite": 1}
    assert all(
        told["cpu_s"] > 0 and told["peak_mb"] > 10 for each in figures.values() for told in each
    )
    first, again = (pq.read_table(tmp_path / name) for name in ("t.parquet", "t.parquet.again"))
    assert first.equals(again)


def test_a_row_for_each_size(tmp_path: Path) -> None:
    words = f"--tokens 256 512 --length 8 --turns 1 --root {tmp_path} --rows {tmp_path}/r.jsonl"
    assert main(words.split()) == 0
    rows = [json.loads(text) for text in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [(row["tokens"], row["length"]) for row in rows] == [(256, 8), (512, 8)]
    assert all("others_cpu_share" in row["machine_state"] for row in rows)
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]
