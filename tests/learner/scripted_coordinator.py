"""A coordinator that follows a script: real sockets, one learner."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar
from unittest.mock import patch

import learner.run
from headrace.config.sections.run import RunConfig
from headrace.host.hardware import free_port
from headrace.protocol.messages.control import Heartbeat, Message, Progress
from headrace.protocol.transport.sockets import BlockingRouter
from learner.process import trainer
from tests.learner.forked import Forked
from tests.learner.recorded import Sent

M = TypeVar("M", bound=Message)


def learner_in_step(argv: list[str]) -> int:
    """A learner whose versions go out with their updates' reports, however busy the machine is."""
    patch.object(trainer, "SHORT_S", 60.0).start()
    return learner.run.main(argv)


class ScriptedCoordinator:
    """Binds, starts learner ranks as processes, and talks to rank 0."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        self.run_dir, self.config = run_dir, config
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "resolved.json").write_text(config.model_dump_json())
        self._router = BlockingRouter("127.0.0.1", 0, max_bytes=64 << 20)
        self.processes: list[Forked] = []
        self.heartbeats = 0
        self.progress: list[Progress] = []
        self._peer = ""

    def start_learner(
        self, ranks: int = 1, main: Callable[[list[str]], int] = learner_in_step
    ) -> None:
        """Start all ranks, as the supervisor does."""
        port = free_port()
        self.processes = []
        for rank in range(ranks):
            argv = [
                "--run-dir", str(self.run_dir), "--connect", self._router.address,
                "--rank", str(rank), "--world-size", str(ranks), "--master-port", str(port),
            ]  # fmt: skip
            log = self.run_dir / f"learner-{rank}.log"
            self.processes.append(Forked(main, argv, log=log))

    def send(self, message: Message) -> None:
        """To rank 0."""
        assert self._router.send(self._peer, message)

    def send_batch(self, sent: Sent) -> None:
        """The header, then the parts of all ranks."""
        self.send(sent.batch)
        for part in sent.parts():
            self.send(part)

    def expect(self, kind: type[M], timeout_s: float = 90.0) -> M:
        """The next message that is not of the pulse; it must be of this kind."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            arrival = self._router.receive(0.5)
            if arrival is None:
                self._check_alive()
                continue
            if isinstance(arrival[1], Progress):
                self.progress.append(arrival[1])
                continue
            self._peer = arrival[0]
            if isinstance(arrival[1], Heartbeat):
                self.heartbeats += 1
                continue
            assert isinstance(arrival[1], kind), arrival[1]
            return arrival[1]
        raise AssertionError(f"no {kind.__name__} within {timeout_s} s")

    def until_stage(self, stage: str, timeout_s: float = 90.0) -> None:
        """Wait for progress in this stage; nothing else may come before it."""
        deadline = time.monotonic() + timeout_s
        while not any(progress.stage.startswith(stage) for progress in self.progress):
            assert time.monotonic() < deadline, stage
            if (arrival := self._router.receive(0.5)) is None:
                self._check_alive()
            elif isinstance(arrival[1], Progress):
                self.progress.append(arrival[1])
            else:
                assert isinstance(arrival[1], Heartbeat), arrival[1]

    def _check_alive(self) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll() not in (None, 0):
                log = (self.run_dir / f"learner-{rank}.log").read_text()
                raise AssertionError(f"rank {rank} ended with {process.poll()}:\n{log[-4000:]}")

    def wait(self) -> list[int]:
        """Exit codes of all ranks."""
        return [process.wait(timeout=60) for process in self.processes]

    def __enter__(self) -> "ScriptedCoordinator":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self._router.close()
