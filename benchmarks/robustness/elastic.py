"""Claim: generators on other hosts come and go during a run, and nothing is lost.

One run and several hosts, each with a network namespace of its own and a wire to the run's, on this
machine (root, `ip`, `tc`). Generators with the scripted engine join from the hosts by `headrace
generator --connect RUN`, are drained (Ctrl-C), killed (SIGKILL), cut off for a few seconds, or get
a slow wire, at moments and in an order that a seed draws; the run has one generator of its own, so
between 1 and `--most` are there. At the end the run is stopped by Ctrl-C and audited. In: seeds.
Out: one line per trial; with --json, as the last line, one JSON object: `updates`; `most`,
generators at once; `events` by kind; `lost`, tokens that a generator had journaled and that are
gone (0); `drained_lost`, tokens that a drain did not hand back (0); `losses`, all tokens that the
journal never got, by reason (`moved`: sampled twice, as a generator was silent for too long);
`elsewhere_s`, from each kill until all answers of the killed were leased to others (median,
largest; goal: the heartbeat deadline and two seconds); `findings` of the audit (0); `exit_code` of
the run (130: Ctrl-C).
"""

import contextlib
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.kit.command_line import add_rows_option, command_line
from benchmarks.kit.rows import report_result
from benchmarks.robustness.chaos_faults import HEARTBEAT_S
from benchmarks.robustness.chaos_job import END_S, RECIPE, SMALL, RunFolder, start_process
from benchmarks.robustness.chaos_testbed import NamespaceNetwork, network_problem
from headrace.protocol.records.record_types import LeaseIssued, ProcessChanged, Record, TokensLost
from storage.audit import audit_run
from storage.journal.store import read_journal

Kind = Literal["join", "drain", "kill", "cut", "slow"]
HOSTS = 3
CUT_S, SLOW_S = 3.0, 4.0
START_S = 120.0
SETTINGS = (*SMALL, "generator.engine=fake", "generator.count=1", "generator.max_num_seqs=16")


def problem() -> str:
    """Say why no networks can be created here, or return an empty text."""
    return network_problem() or ("" if shutil.which("tc") else "there is no tc")


class GuestGenerator(NamedTuple):
    """A generator that joined from a host."""

    name: str
    process: subprocess.Popen[bytes]


class ElasticTrial(RunFolder):
    """One run, its hosts, and the generators that join and leave."""

    def __init__(self, root: Path, network: NamespaceNetwork, seed: int) -> None:
        super().__init__(root)
        self._network, self._seed = network, seed
        self._dice = random.Random(seed)
        self._events: Counter[str] = Counter()
        self._guests: list[GuestGenerator] = []
        self._most = 1
        self._killed: dict[str, float] = {}
        self._drained: dict[str, float] = {}
        """Time of each by name, in seconds since 1970."""

    def play(self, events: int, most: int) -> dict[str, Any]:
        """Run the whole trial; return its figures."""
        job = self._headrace(
            0, "train", "train", str(RECIPE), "--plain", "--root", str(self.root), *SETTINGS,
            f"transport.host={self._network.address(0)}", f"seed={self._seed}",
        )  # fmt: skip
        try:
            self._until(job, lambda: len(self.updates()) >= 1)
            for _ in range(events):
                self._guests = [one for one in self._guests if one.process.poll() is None]
                self._do(_draw_event(self._dice, len(self._guests), most))
                self._most = max(self._most, 1 + len(self._guests))
                time.sleep(self._dice.uniform(0.2, 2.0))
            goal = len(self.updates()) + 2
            self._until(job, lambda: len(self.updates()) >= goal)
            job.send_signal(signal.SIGINT)
            code = job.wait(END_S)
            for guest in self._guests:
                guest.process.wait(END_S)
        finally:
            for process in (job, *(guest.process for guest in self._guests)):
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        return self._figures(code)

    def _headrace(self, host: int, name: str, *argv: str) -> subprocess.Popen[bytes]:
        command = self._network.command(host, [sys.executable, "-m", "headrace", *argv])
        return start_process(command, self.root / f"{name}.log")

    def _do(self, kind: Kind) -> None:
        host = self._dice.randint(1, HOSTS)
        self._events[kind] += 1
        match kind:
            case "join":
                name = f"guest-{self._events['join']}"
                join = ("generator", "--connect", str(self.run_dir), "--name", name)
                self._guests.append(GuestGenerator(name, self._headrace(host, name, *join)))
            case "cut":
                self._network.cut(host, CUT_S)
            case "slow":
                self._network.slow(host, SLOW_S)
            case "drain" | "kill" if self._guests:
                guest = self._guests.pop(self._dice.randrange(len(self._guests)))
                left = self._killed if kind == "kill" else self._drained
                left[guest.name] = time.time()
                guest.process.send_signal(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
                guest.process.wait(END_S)

    def _until(self, job: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            if job.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.root / "train.log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)

    def _figures(self, code: int) -> dict[str, Any]:
        records = [one for batch in read_journal(self.run_dir / "journal") for _, one in batch]
        lost, drained, joined = Counter[str](), 0, set[str]()
        for record in records:
            match record:
                case TokensLost():
                    lost[record.reason] += record.tokens
                    if record.at >= self._drained.get(record.generator, math.inf):
                        drained += record.tokens
                case ProcessChanged(state="up", name=name) if name.startswith("guest-"):
                    joined.add(name)
        report = audit_run(self.run_dir)
        return {
            "seed": self._seed,
            "updates": len(self.updates()),
            "most": self._most,
            "events": dict(self._events),
            "joined": len(joined),
            "lost": lost["refused"],
            "died": lost["died"],
            "drained_lost": drained,
            "losses": dict(lost),
            "elsewhere_s": [round(seconds, 2) for seconds in elsewhere(records, self._killed)],
            "findings": len(report.findings),
            "texts": [f"{f.kind} {f.where}: {f.text}" for f in report.findings][:3],
            "exit_code": code,
        }


def _draw_event(rng: random.Random, guests: int, most: int) -> Kind:
    """Draw an event: mostly joins while there are few, leaves while there are many."""
    if guests == 0:
        return "join"
    full = guests / max(1, most - 1)
    if rng.random() < 0.75:
        return "join" if rng.random() > full else rng.choice(("drain", "kill"))
    return rng.choice(("cut", "slow"))


def elsewhere(records: Sequence[Record], killed: dict[str, float]) -> list[float]:
    """Return seconds from each kill until the generator's answers were leased again.

    Those that ended or wait for the schedule at the end do not count."""
    holders: dict[int, str] = {}
    over: dict[str, float] = {}
    for record in records:
        if not isinstance(record, LeaseIssued):
            continue
        before = holders.get(record.trajectory_id)
        if before in killed and record.generator != before and record.at > killed[before]:
            over[before] = max(over.get(before, 0.0), record.at - killed[before])
        holders[record.trajectory_id] = record.generator
    return list(over.values())


def main(argv: Sequence[str]) -> int:
    parser = command_line("elastic", __doc__)
    parser.add_argument("--events", type=int, default=30, help="of a trial")
    parser.add_argument("--most", type=int, default=16, help="generators at once")
    parser.add_argument("--first-seed", type=int, default=1, help="of the first trial")
    parser.add_argument("--trials", type=int, default=3, help="in turn, each with its seed")
    add_rows_option(parser)
    args = parser.parse_args(argv)
    if reason := problem():
        parser.error(reason)
    trials = []
    for seed in range(args.first_seed, args.first_seed + args.trials):
        network = contextlib.closing(NamespaceNetwork(HOSTS))
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root, network as hosts:
            found = ElasticTrial(Path(root), hosts, seed).play(args.events, args.most)
        trials.append(found)
        print(
            f"seed {seed}: {found['updates']} updates, up to {found['most']} generators, "
            f"{found['events']}, lost {found['lost']}, findings {found['findings']}, "
            f"exit {found['exit_code']}",
            flush=True,
        )
    waits = [seconds for trial in trials for seconds in trial["elsewhere_s"]]
    counted = ("updates", "lost", "drained_lost", "findings")
    result = {
        "name": "elastic",
        "trials": trials,
        **{name: sum(trial[name] for trial in trials) for name in counted},
        "elsewhere_s": {
            "median": statistics.median(waits) if waits else None,
            "max": max(waits, default=None),
        },
        "deadline_s": HEARTBEAT_S,
    }
    return report_result(args, result)
