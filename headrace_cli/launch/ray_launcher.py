"""Processes that a supervisor starts on the hosts of a Ray cluster.

In: the plan of `hosts.py`, the address of a cluster. Out: a `ProcessLauncher` whose children run in
Ray actors. Ray chooses hosts by each one's `ResourceShare`; the learner's ranks have a placement
group. An actor is one life of one process: it starts the role's own command, with its log in the
run's folder, and returns the exit code. What died with its host counts as killed, and the
supervisor starts it again, wherever Ray finds room. When the supervisor is gone Ray ends its
actors, and the reaper of each ends its process.

Only words and numbers travel through Ray, which pickles what it carries: a cluster trusts all who
can reach it. Ray is imported when it is used.
"""

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import UserError, first_line
from headrace.host.hardware import free_port
from headrace.host.process_reaper import signal_groups
from headrace.host.shared_memory import remove_weights
from headrace_cli.launch.hosts import HOST, ResourceShare
from headrace_cli.launch.plan import ADDRESS, MASTER_ADDRESS, MASTER_PORT, ProcessSpec
from headrace_cli.launch.process import ChildProcess, ProcessLauncher, fill_placeholders

PASSED_PREFIXES = ("GLOO_", "HF_", "NCCL_", "TORCH_", "TRANSFORMERS_", "VLLM_", "DO_NOT_TRACK")
"""Beginnings of the variables that reach the processes from the supervisor's environment."""
LOOK_EVERY_S = 0.1
CONNECT_S = 5.0


def connect(address: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Join a cluster, `auto` or HOST:PORT; return its resources, and those that nobody has now.
    UserError: no Ray or cluster."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UserError(
            "Ray is not installed; install the extra `ray` on every host: pip install "
            "'headrace[ray]', from source pip install -e '.[ray]'"
        ) from error
    try:
        if address != "auto":
            # Ray itself waits for a minute and then ends the process.
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"no Ray cluster at {address!r} ({first_line(error)}); start one with `ray start "
            "--head` and name it by --address HOST:PORT"
        ) from error
    return dict(ray.cluster_resources()), dict(ray.available_resources())


def check_room(
    plan: Sequence[tuple[ProcessSpec, ResourceShare]],
    offered: Mapping[str, float],
    free: Mapping[str, float],
) -> None:
    """UserError where a cluster has too little for all processes together, or others have it."""
    for name, asked in (
        ("CPU", sum(share.cpus for _, share in plan)),
        ("GPU", sum(share.gpus for _, share in plan)),
    ):
        if offered.get(name, 0) < asked:
            raise UserError(
                f"the plan asks for {asked} {name}s, the cluster has {offered.get(name, 0):g}; "
                "add nodes to it, or lower generator.count or learner.ranks"
            )
        if free.get(name, 0) < asked:
            raise UserError(
                f"the plan asks for {asked} {name}s, and {free.get(name, 0):g} of the cluster's "
                f"{offered[name]:g} are free now; wait for what has the others, or end it"
            )


@dataclass
class _RemoteProcess:
    """One life of a process: its actor, and references to its exit code and process id."""

    actor: Any
    code: Any
    pid: Any


class RayLauncher(ProcessLauncher):
    """Starts and ends children on a cluster that `connect` joined."""

    def __init__(self, plan: Sequence[tuple[ProcessSpec, ResourceShare]]) -> None:
        super().__init__()
        self._shares = {spec.name: share for spec, share in plan}
        self._ranks = [spec.name for spec, _ in plan if spec.role == "learner"]
        self._group: Any = None
        self._meeting: Any = None
        self._actors: list[Any] = []

    def __enter__(self) -> "RayLauncher":
        import ray.util

        if self._ranks:
            shares = [self._shares[name] for name in self._ranks]
            bundles = [
                {"CPU": float(share.cpus)} | ({"GPU": float(share.gpus)} if share.gpus else {})
                for share in shares
            ]
            self._group = ray.util.placement_group(bundles, strategy="PACK")
        return self

    def __exit__(self, *exc: object) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)
        ray.shutdown()

    def start(self, child: ChildProcess, placeholders: Mapping[str, str], *extra: str) -> int:
        """Ask Ray for an actor that runs the child; 0, because its process id comes later."""
        import ray
        import ray.util.scheduling_strategies as strategies

        spec, share = child.spec, self._shares[child.spec.name]
        place: Any = "DEFAULT"
        if spec.role == "learner":
            bundle = self._ranks.index(spec.name)
            place = strategies.PlacementGroupSchedulingStrategy(self._group, bundle)
        actor = (
            ray.remote(ProcessActor)
            .options(
                num_cpus=share.cpus,
                num_gpus=share.gpus,
                max_concurrency=4,
                scheduling_strategy=place,
                runtime_env={"env_vars": {"PYTHONPATH": spec.env["PYTHONPATH"]}},
            )
            .remote()
        )
        self._actors.append(actor)
        if self._ranks and spec.name == self._ranks[0]:
            self._meeting = actor.meet.remote()
        # The ranks wait for the answer of the first one; nobody else does.
        meeting = self._meeting if spec.role == "learner" else None
        argv = fill_placeholders((*spec.argv, *extra), {ADDRESS: placeholders[ADDRESS]})
        passed = {k: v for k, v in os.environ.items() if k.startswith(PASSED_PREFIXES)}
        code = actor.run.remote(argv, {**passed, **spec.env}, str(spec.log), meeting)
        child.remote = _RemoteProcess(actor, code, actor.pid.remote())
        child.started_at = time.monotonic()
        return 0

    def pid(self, child: ChildProcess) -> int:
        """The process id on the child's host, once its actor has started it."""
        import ray

        if child.remote is None:
            return 0
        try:
            found = _answer(child.remote.pid) or 0
        except ray.exceptions.RayError:
            return 0
        if not found and _is_known(child.remote.pid):
            child.remote.pid = child.remote.actor.pid.remote()
        return found

    def signal(self, child: ChildProcess, number: int) -> None:
        """Have the actor signal its process group."""
        child.remote.actor.signal.remote(number)

    def ask_for_stacks(self, child: ChildProcess) -> None:
        child.remote.actor.ask_for_stacks.remote()

    def reap(self, child: ChildProcess) -> int | None:
        """The exit status; -SIGKILL where the actor or its host is gone; None while it lives."""
        import ray

        if child.remote is None:
            return None
        try:
            code = _answer(child.remote.code)
        except ray.exceptions.RayTaskError as error:
            with child.spec.log.open("a") as log:
                log.write(f"{error}\n")
            code = 1
        except ray.exceptions.RayError:
            code = -signal.SIGKILL
        if code is not None:
            self._drop(child)
        return code

    def end(self, children: Any, *, grace_s: float) -> dict[str, int]:
        """As on one host; an actor that does not answer is given up."""
        left = [child for child in children if child.running]
        codes = super().end(left, grace_s=grace_s)
        for child in left:
            if child.running:
                self._drop(child)
        return codes

    def _drop(self, child: ChildProcess) -> None:
        import ray

        actor = child.remote.actor
        child.remote = None
        self._actors.remove(actor)
        ray.kill(actor)


def _answer(reference: Any) -> int | None:
    """Return a reference's value; None while it is not known. RayError where it never will be."""
    import ray

    return int(ray.get(reference)) if _is_known(reference) else None


def _is_known(reference: Any) -> bool:
    import ray

    return bool(ray.wait([reference], timeout=0)[0])


class ProcessActor:
    """The actor: one process of the run on the host that Ray chose."""

    def __init__(self) -> None:
        self._launcher = ProcessLauncher()
        self._child: ChildProcess | None = None

    def meet(self) -> tuple[str, int]:
        """Return host and port where the other ranks find the learner's first one."""
        return _own_host(), free_port()

    def run(
        self, argv: list[str], env: dict[str, str], log: str, meeting: tuple[str, int] | None
    ) -> int:
        """Run the process to its end; its exit status, negative for a signal."""
        address, port = meeting or ("", 0)
        values = {HOST: _own_host(), MASTER_ADDRESS: address, MASTER_PORT: str(port)}
        spec = ProcessSpec("", "generator", tuple(argv), env, Path(log))
        with self._launcher:
            child = self._child = ChildProcess(spec)
            self._launcher.start(child, values)
            while (code := self._launcher.reap(child)) is None:
                time.sleep(LOOK_EVERY_S)
        remove_weights(spec.log.parent.parent.name)  # a learner may have been killed
        return code

    def pid(self) -> int:
        """The process's id; 0 before its start."""
        return self._launcher.pid(self._child) if self._child is not None else 0

    def signal(self, number: int) -> None:
        """Signal the process and its descendants."""
        if pid := self.pid():
            signal_groups({pid}, number)

    def ask_for_stacks(self) -> None:
        """Have the process and its descendants write down what they are doing."""
        if self._child is not None and self._child.running:
            self._launcher.ask_for_stacks(self._child)


def _own_host() -> str:
    """This host as Ray's other nodes know it."""
    import ray.util

    return str(ray.util.get_node_ip_address())
