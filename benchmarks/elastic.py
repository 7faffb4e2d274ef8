"""Claim: generators on other hosts come and go while learning goes on, and nothing is lost.

One run and several hosts, each with a network namespace of its own and a wire to the run's, on this
machine (root, `ip`, `tc`). Generators with the scripted engine join from the hosts by `headrace
generator --connect RUN`, are drained (Ctrl-C), killed (SIGKILL), cut off for a few seconds, or get
a slow wire, at moments and in an order that a seed draws; the run has one generator of its own, so
between 1 and `--most` are there. At the end the run is stopped by Ctrl-C and audited. In: seeds.
Out: a line a trial; with --json, as the last line, one JSON object: `updates`; `most`, generators
at once; `events` by kind; `lost`, tokens that a generator had journaled and that are gone (0);
`drained_lost`, tokens that a drain did not hand back (0); `losses`, all tokens that the journal
never got, by reason (`moved`: sampled twice, as a generator was silent for too long);
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.chaos_place import network_problem
from benchmarks.command_line import command_line, offer_row
from benchmarks.rows import keep, result_line
from headrace.applied import read_applied
from headrace.install import ROOT
from headrace.protocol.records import LeaseIssued, ProcessChanged, Record, TokensLost
from storage.audit import audit_run
from storage.journal import read_journal

Kind = Literal["join", "drain", "kill", "cut", "slow"]
RECIPE = ROOT / "recipes" / "quickstart.toml"
HOSTS = 3
DEADLINE_S = 5.0
"""`transport.heartbeat_timeout_s` of the trials."""
CUT_S, SLOW_S, SLOW_RATE = 3.0, 4.0, "2mbit"
START_S, END_S = 120.0, 150.0
SETTINGS = (
    "generator.engine=fake", "generator.count=1", "schedule.batch_windows=16",
    "generator.max_num_seqs=16", "algorithm.value.warmup_updates=1", "dashboard.enabled=false",
    "evaluation.before=false", "evaluation.after=false", "evaluation.every_updates=null",
    "stop.updates=null", f"transport.heartbeat_timeout_s={DEADLINE_S:g}",
)  # fmt: skip


def problem() -> str:
    """Why there can be no networks here, or an empty text."""
    return network_problem() or ("" if shutil.which("tc") else "there is no tc")


class Network:
    """The run's host (0) and others, joined by a bridge in the run's own namespace. Addresses are
    10.77.0.1 and up; nothing of it is seen from outside."""

    def __init__(self, hosts: int) -> None:
        tag = f"hr{os.getpid()}"
        self.names = [f"{tag}-{number}" for number in range(hosts + 1)]
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        for name in self.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        home = self.names[0]
        _ip("-n", home, "link", "add", "bridge", "type", "bridge")
        _ip("-n", home, "addr", "add", f"{self.address(0)}/24", "dev", "bridge")
        _ip("-n", home, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names[1:], 1):
            wire = f"wire{number}"
            peer = ("type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", home, "link", "add", wire, *peer)
            _ip("-n", home, "link", "set", wire, "master", "bridge", "up")
            _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def address(self, host: int) -> str:
        """A host's address."""
        return f"10.77.0.{host + 1}"

    def command(self, host: int, argv: Sequence[str]) -> list[str]:
        """The command that runs on a host."""
        return ["ip", "netns", "exec", self.names[host], *argv]

    def cut(self, host: int, seconds: float) -> None:
        """Nothing reaches the host, and nothing leaves it, for so long."""
        _ip("-n", self.names[0], "link", "set", f"wire{host}", "down")
        try:
            time.sleep(seconds)
        finally:
            _ip("-n", self.names[0], "link", "set", f"wire{host}", "up")

    def slow(self, host: int, seconds: float) -> None:
        """What leaves the host waits for a token bucket for so long."""
        inside = ("ip", "netns", "exec", self.names[host], "tc", "qdisc")
        bucket = ("tbf", "rate", SLOW_RATE, "burst", "32kb", "latency", "500ms")
        _run(*inside, "add", "dev", "eth0", "root", *bucket)
        try:
            time.sleep(seconds)
        finally:
            _run(*inside, "del", "dev", "eth0", "root")

    def close(self) -> None:
        """The hosts are gone, their wires with them."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


@dataclass
class Guest:
    """A generator that joined from a host."""

    name: str
    host: int
    process: subprocess.Popen[bytes]


@dataclass
class Trial:
    """One run and who comes and goes."""

    root: Path
    network: Network
    seed: int
    events: Counter[str] = field(default_factory=Counter)
    guests: list[Guest] = field(default_factory=list)
    most: int = 1
    killed: dict[str, float] = field(default_factory=dict)
    """By name, when (seconds since 1970)."""
    drained: dict[str, float] = field(default_factory=dict)
    """By name, when."""
    _count: int = 0

    def play(self, events: int, most: int) -> dict[str, Any]:
        """The whole trial; its figures."""
        rng = random.Random(self.seed)
        with contextlib.ExitStack() as stack:
            job = self._start()
            stack.callback(_end, job)
            stack.callback(self._end_guests)
            self._until(job, lambda: self._updates() >= 1, START_S)
            for _ in range(events):
                self._do(_drawn(rng, len(self.guests), most), rng)
                time.sleep(rng.uniform(0.2, 2.0))
            goal = self._updates() + 2
            self._until(job, lambda: self._updates() >= goal, START_S)
            job.send_signal(signal.SIGINT)
            code = job.wait(END_S)
            for guest in self.guests:
                guest.process.wait(END_S)
        return self._figures(code)

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "headrace", "train", str(RECIPE), "--plain"]
        argv += ["--root", str(self.root), *SETTINGS]
        argv += [f"transport.host={self.network.address(0)}", f"seed={self.seed}"]
        with (self.root / "train.log").open("wb") as log:
            return subprocess.Popen(
                self.network.command(0, argv), stdout=log, stderr=log, cwd=ROOT,
                env=_environment(), start_new_session=True,
            )  # fmt: skip

    def _do(self, kind: Kind, rng: random.Random) -> None:
        """One event; who left by itself is forgotten first."""
        self.guests = [guest for guest in self.guests if guest.process.poll() is None]
        host = rng.randint(1, HOSTS)
        self.events[kind] += 1
        match kind:
            case "join":
                self._join(host)
            case "cut":
                self.network.cut(host, CUT_S)
            case "slow":
                self.network.slow(host, SLOW_S)
            case "drain" | "kill" if self.guests:
                guest = self.guests.pop(rng.randrange(len(self.guests)))
                if kind == "kill":
                    self.killed[guest.name] = time.time()
                    guest.process.kill()
                else:
                    self.drained[guest.name] = time.time()
                    guest.process.send_signal(signal.SIGINT)
                guest.process.wait(END_S)
        self.most = max(self.most, 1 + len(self.guests))

    def _join(self, host: int) -> None:
        self._count += 1
        name = f"guest-{self._count}"
        argv = [sys.executable, "-m", "headrace", "generator", "--connect", str(self.run_dir)]
        argv += ["--name", name]
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                self.network.command(host, argv), stdout=log, stderr=log, cwd=ROOT,
                env=_environment(), start_new_session=True,
            )  # fmt: skip
        self.guests.append(Guest(name, host, process))

    def _end_guests(self) -> None:
        for guest in self.guests:
            _end(guest.process)

    @property
    def run_dir(self) -> Path:
        """The trial's run folder."""
        (folder,) = [path for path in self.root.iterdir() if path.is_dir()]
        return folder

    def _updates(self) -> int:
        if not any(path.is_dir() for path in self.root.iterdir()):
            return 0
        return sum(1 for _ in read_applied(self.run_dir))

    def _until(
        self, job: subprocess.Popen[bytes], condition: Callable[[], bool], seconds: float
    ) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if job.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.root / "train.log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)

    def _figures(self, code: int) -> dict[str, Any]:
        records = [one for batch in read_journal(self.run_dir / "journal") for _, one in batch]
        lost = Counter[str]()
        drained = 0
        for record in records:
            if isinstance(record, TokensLost):
                lost[record.reason] += record.tokens
                if record.at >= self.drained.get(record.generator, math.inf):
                    drained += record.tokens
        report = audit_run(self.run_dir)
        waits = elsewhere(records, self.killed)
        return {
            "seed": self.seed,
            "updates": self._updates(),
            "most": self.most,
            "events": dict(self.events),
            "joined": len(joined(records)),
            "lost": lost["refused"],
            "died": lost["died"],
            "drained_lost": drained,
            "losses": dict(lost),
            "elsewhere_s": [round(seconds, 2) for seconds in waits],
            "findings": len(report.findings),
            "texts": [f"{f.kind} {f.where}: {f.text}" for f in report.findings][:3],
            "exit_code": code,
        }


def joined(records: Sequence[Record]) -> set[str]:
    """Names of the guests that the coordinator knew."""
    return {
        record.name
        for record in records
        if isinstance(record, ProcessChanged)
        and record.state == "up"
        and record.name.startswith("guest-")
    }


def _drawn(rng: random.Random, guests: int, most: int) -> Kind:
    """Mostly comings while there are few, and goings while there are many."""
    if guests == 0:
        return "join"
    full = guests / max(1, most - 1)
    if rng.random() < 0.75:
        return "join" if rng.random() > full else rng.choice(("drain", "kill"))
    return rng.choice(("cut", "slow"))


def elsewhere(records: Sequence[Record], killed: dict[str, float]) -> list[float]:
    """Seconds from each kill until the answers that the killed generator held were leased again, to
    whomever; those that ended or wait for the schedule at the end do not count."""
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


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def open_network(hosts: int = HOSTS) -> Iterator[Network]:
    """Hosts, as long as the block runs."""
    network = Network(hosts)
    try:
        yield network
    finally:
        network.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print, end."""
    parser = command_line("elastic", __doc__)
    parser.add_argument("--events", type=int, default=30, help="of a trial")
    parser.add_argument("--most", type=int, default=16, help="generators at once")
    parser.add_argument("--first-seed", type=int, default=1, help="of the first trial")
    parser.add_argument(
        "--trials", type=int, default=3, help="one after the other, each with its seed"
    )
    offer_row(parser)
    args = parser.parse_args(argv)
    if reason := problem():
        parser.error(reason)
    trials = []
    for seed in range(args.first_seed, args.first_seed + args.trials):
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as root, open_network() as net:
            found = Trial(Path(root), net, seed).play(args.events, args.most)
        trials.append(found)
        print(
            f"seed {seed}: {found['updates']} updates, up to {found['most']} generators, "
            f"{found['events']}, lost {found['lost']}, findings {found['findings']}, "
            f"exit {found['exit_code']}",
            flush=True,
        )
    waits = [seconds for trial in trials for seconds in trial["elsewhere_s"]]
    result = {
        "benchmark": "elastic",
        "trials": trials,
        **{
            name: sum(trial[name] for trial in trials)
            for name in ("updates", "lost", "drained_lost", "findings")
        },
        "elsewhere_s": {
            "median": statistics.median(waits) if waits else None,
            "max": max(waits, default=None),
        },
        "deadline_s": DEADLINE_S,
    }
    keep(args.rows, result)
    if args.json:
        print(result_line(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
