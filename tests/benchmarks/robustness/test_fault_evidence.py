"""What stands on the pages of faults, guarantees and security is reckoned from rows alone."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.rows import Rows
from benchmarks.robustness import fault_evidence

CHAOS: dict[str, Any] = {
    "engine": "fake", "seed": 7, "faults": 3, "kills": 2, "stops": 1, "lost": 0, "doubled": 0,
    "kinds": {"kill": 2, "stop": 1}, "doubled_in_weights": 0, "orphans": 0, "hangs": 0,
    "unresumable": 0, "ledger_error_tokens": 0, "died": 5, "moved": 4, "generated": 1000,
    "trained": 5, "updates": 4, "resumes": 1, "rolled_back": 50, "trained_again": 49,
    "exit_code": 130, "dropped": {"stale": 4},
    "ends": ["error: reward-0 died; logs in /somewhere/logs"],
    "recovery_s": {"learner": [1.0, 4.0], "coordinator": [0.5]},
    "recovery_kill_s": {"learner": [4.0]},
}  # fmt: skip


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fault_evidence, "RESULTS", tmp_path)
    return tmp_path


def add(results: Path, benchmark: str, **row: Any) -> None:
    rows = Rows(results / f"{benchmark}.jsonl")
    rows.add(f"{benchmark}/{len(rows.rows)}", row)


def test_what_has_no_row_says_so(results: Path) -> None:
    lines = fault_evidence.figures_table().splitlines()[2:]
    assert len(lines) == 11
    assert all("not measured" in line for line in lines)
    assert fault_evidence.chaos_table() == "Not measured: `headrace bench chaos`.\n"
    assert "0 inputs in the checked-in rows, 0 findings open" in fault_evidence.fuzz_table()
    assert fault_evidence.fuzz_table().count("the tests only") == 5


def test_figures_are_those_of_the_rows(results: Path) -> None:
    add(results, "chaos", **CHAOS)
    add(results, "elastic", elsewhere_s={"median": 5.5, "max": 6.25}, deadline_s=5.0)
    add(
        results, "journal", engine="vllm", ratio=0.992, interval=[0.985, 0.999], rounds=18,
        tokens_per_s={"journal": 7912.4, "none": 7976.0}, writer={"core_share": 0.0421},
        disturbed=True,
    )  # fmt: skip
    add(results, "journal", engine="fake", ratio=0.5, interval=[0.4, 0.6], rounds=2)
    for size in (1_000, 1_000_000):
        sizes = [{"trajectories": size, "restart_s": 3.0, "memory_mb": 500}]
        add(results, "restart", sizes=sizes)
    add(results, "soak", trajectories=1_000, growth=0.5, growth_of_run=0.5, restarts=3)
    for growth in (0.01, 0.03):
        add(results, "soak", trajectories=5_000, growth=growth, growth_of_run=0.02, restarts=3)
    fleet = {
        "16": {"trajectories_per_s": 1930.4, "coordinator_busy": 0.99, "lost": 0, "ranks": 64},
        "1000": {"trajectories_per_s": 818.0, "coordinator_busy": 0.9, "lost": 0.0, "ranks": 64},
    }
    add(results, "fleet", sizes=fleet, ends_at=1000)
    suite = {
        "exit_code": 0,
        "arguments": [],
        "tests": {"passed": 6795},
        "steps": {"tests": 1500},
        "seconds": 1545,
    }
    add(results, "suite", **suite, disturbed=True)
    add(results, "suite", **suite | {"arguments": ["tests/learner"]}, disturbed=False)
    add(results, "suite", **suite | {"exit_code": 2, "steps": {}}, disturbed=False)
    for target in ("codec", "intake"):
        row = {"target": target, "inputs": 10, "outcomes": {"taken": 4, "refused": 6}}
        add(results, "fuzz", **row, findings=[{"what": "KeyError", "inputs": [3]}])
    table = fault_evidence.figures_table()
    for text in (
        "| 0; 0; 0 in 3 faults, 1 run |",
        "| 98% of 50 |",
        "| median 5.5 s, at most 6.2 s with a deadline of 5 s |",
        "| median 4.0 s, at most 4.0 s to the next update after 1 kills; kills and stops together: "
        "median 2.5 s, at most 4.0 s (2) |",
        "| not measured apart from stops; kills and stops together: median 0.5 s, at most 0.5 s "
        "(1); tokens lost: 0 |",
        "| 0.8% (95 %: 0.1% to 1.5%) in 18 rounds at 7,912 tokens a second; the writer takes 4.2% "
        "of a core; others were busy beside it |",
        "| 3.0 s and 500 MB at 1,000,000 trajectories |",
        "| within a stretch and over the run: 1.0% and 2.0%; 3.0% and 2.0% (2 runs of 5,000 "
        "trajectories and 3 kills); more not measured",
        "| answers a second: 1,930 with 16, 818 with 1,000 generators (64 ranks); it ends at "
        "1,000: less than half of the first, or peers lost. Then its core is 90% busy, and 0 "
        "peers were given up |",
        "| 25.0 minutes of tests, 25.8 with checks (6,795 passed); others were busy beside it |",
        "| 2 open in 20 inputs; the fewest of a target: 0 (`config`) |",
    ):
        assert text in table
    assert "frames to messages | 10 | 4 | 6 |" in fault_evidence.fuzz_table()


def test_faults_are_counted_by_engine(results: Path) -> None:
    add(results, "chaos", **CHAOS)
    add(results, "chaos", **CHAOS | {"seed": 8, "ends": []})
    add(results, "chaos", **CHAOS | {"engine": "vllm", "kinds": {"kill_job": 1}, "ends": []})
    lines = fault_evidence.chaos_table().splitlines()
    assert lines[0] == "|  | scripted engine | vLLM engine |"
    assert "| kills of a role | 4 | 0 |" in lines
    assert "| kills of the whole job | 0 | 1 |" in lines
    assert "| tokens generated | 2,000 | 1,000 |" in lines
    assert "| runs that ended by themselves and were resumed | 1 | 0 |" in lines
    assert "No row: PyTorch." in lines
    assert "Seed 7 (scripted engine) ended once: `reward-0 died`." in lines
