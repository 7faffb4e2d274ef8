"""Start of a coordinator: `python -m coordinator.run --run-dir DIR [--resume]`.

In: DIR/resolved.json. Out: DIR/coordinator.json with the address once the socket is bound, and all
that the run writes through storage. Exit code 0 when the run ended in good order (a stop or an
interruption is one), 1 when it failed, 2 for the user's mistake.
"""

from headrace.host.memory import lasting

# A third of the time of a start and of an end.
with lasting():
    import argparse
    import asyncio
    import json
    import os
    import signal
    import socket
    import sys
    import time
    from pathlib import Path

    from coordinator.dispatch.leases import LeaseTable
    from coordinator.dispatch.prompts import Prompts
    from coordinator.hub import Hub, TrainingClock
    from coordinator.line_rewards.line_scoring import LineScoring
    from coordinator.loop import Coordinator
    from coordinator.persistence.recorder import Recorder
    from coordinator.persistence.snapshots import restored
    from coordinator.persistence.state import State
    from coordinator.scheduling.streaming import StreamingScheduler
    from coordinator.scheduling.synchronous import SynchronousScheduler
    from coordinator.scheduling.window_lifecycle import WindowLifecycle
    from headrace.config.sections.run import RunConfig
    from headrace.config.validation.batch_rules import batch_rules
    from headrace.data.media import MediaStore
    from headrace.errors import StorageBlockedError, UserError
    from headrace.host import memory, stack_dumps
    from headrace.host.disk import RETRY_FULL_S, RETRY_S, WAIT_PREFIX, lack_of_room, writing
    from headrace.protocol.messages.control import WeightNotice, weights_digest
    from headrace.protocol.records.record_types import Restarted, VersionIssued, VersionPublished
    from headrace.protocol.transport.sockets import Router
    from headrace.run_files.run_folder import COORDINATOR_FILE, MEDIA, read_config, write_atomically
    from storage.database.engine import DatabaseAwayError
    from storage.run_store import START_BYTES, RunStore

LAST_WRITER_S = 90.0
"""Seconds that the last coordinator, whose supervisor was killed, may need to end, and for which a
server of NFS by default keeps the locks of a host that is gone."""


def build(config: RunConfig, run_dir: Path, *, resume: bool) -> tuple[Coordinator, RunStore]:
    """Build a coordinator and its store; on resume rebuild the state from the journal."""
    run_id = run_dir.name
    media = MediaStore(run_dir / MEDIA)
    prompts = Prompts(config, media)
    transport = config.transport

    def rejected(name: str, why: str) -> None:
        hub.rejections.add(name, "message_rejected", why)

    def bind(port: int) -> Router:
        return Router(
            transport.host,
            port,
            max_bytes=transport.max_bytes,
            curve_keys=transport.curve_keys,
            on_reject=rejected,
        )

    try:
        router = bind(transport.port or (_last_port(run_dir) if resume else 0))
    except UserError:
        if transport.port:
            raise
        router = bind(0)
    if resume:
        store = RunStore.open(run_dir, wait_s=LAST_WRITER_S)
        state = restored(config, store)
        prompts.compare_rows(state.account.groups.values())
    else:
        store = RunStore.create(run_dir, run_id, config)
        state = State(config)
    media.clean()  # Whoever wrote before is gone.
    leases = LeaseTable(state.account)
    kind = StreamingScheduler if config.schedule.mode == "streaming" else SynchronousScheduler
    lines = None
    if config.reward.line_source() is not None:
        lines = LineScoring(config, state.account, prompts.line_tokens())
    recorder = Recorder(store, interval_s=config.storage.commit_interval_ms / 1000)
    hub = Hub(
        config=config,
        run_id=run_id,
        run_dir=str(run_dir),
        state=state,
        leases=leases,
        lifecycle=WindowLifecycle(config, state.account, lines),
        scheduler=kind(config, state, leases),
        rules=batch_rules(config),
        recorder=recorder,
        router=router,
        clock=TrainingClock(train_s=state.train_time_s),
        lines=lines,
    )
    hub.rejections.before = int(state.rejected)
    coordinator = Coordinator(hub, prompts)
    if resume:
        _take_over(coordinator)
    if config.evaluation.only:
        _serve_model_folder(coordinator, config)
    return coordinator, store


def _wait_for_room(run_dir: Path, problem: str) -> None:
    """Report the problem, and wait until the disk seems to have room.

    Wait at most RETRY_FULL_S, because some file systems do not report it."""
    print(f"{WAIT_PREFIX}{problem}", file=sys.stderr, flush=True)
    until = time.monotonic() + RETRY_FULL_S
    time.sleep(RETRY_S)
    while lack_of_room(run_dir, START_BYTES) and time.monotonic() < until:
        time.sleep(RETRY_S)
    print("tries again", file=sys.stderr, flush=True)


def _last_port(run_dir: Path) -> int:
    """Return the port of the last coordinator, where processes look for the new one."""
    try:
        return int(
            json.loads((run_dir / COORDINATOR_FILE).read_text())["address"].rsplit(":", 1)[1]
        )
    except (OSError, ValueError, LookupError, TypeError):  # any port will do for a new start
        return 0


def _take_over(coordinator: Coordinator) -> None:
    """Go on where the last coordinator was.

    Generators go on with its leases, every other unfinished trajectory waits for one, and every
    complete one for its score. The learner's Hello says whether a batch in flight was trained."""
    hub = coordinator.hub
    kept = hub.config.evaluation.only
    next_lease = hub.state.next_lease
    hub.record_event(Restarted(next_lease=next_lease, keeps_evaluation=kept))
    hub.leases.restore(hub.state.leases)
    hub.scheduler.resume()
    coordinator.parts.generation.resume()
    hub.settle_windows(list(hub.account.active.values()))
    if (episodes := coordinator.parts.episodes) is not None:
        episodes.restore()
    for trajectory in hub.account.trajectories.values():
        coordinator.parts.scoring.add(trajectory)
    hub.recorder.keep_short()


def _serve_model_folder(coordinator: Coordinator, config: RunConfig) -> None:
    """Publish the model folder as version 0, for an evaluation without a learner."""
    weights = Path(config.model.path) / "model.safetensors"
    if not weights.is_file():
        raise UserError(
            f"an evaluation reads weights from one file, and {weights.parent} has no {weights.name}"
        )
    size = weights.stat().st_size
    hub = coordinator.hub
    if hub.state.versions.issued < 0:  # Else a coordinator before this one wrote it down.
        hub.record_event(VersionIssued(version=0))
        hub.record_event(VersionPublished(version=0, lineage=0, update=0, num_bytes=size))
    coordinator.parts.generation.notice = WeightNotice(
        version=0,
        update=0,
        digest=weights_digest(weights),
        num_bytes=size,
        sources=[f"file:{weights.resolve()}"],
    )


async def _main(config: RunConfig, run_dir: Path, *, resume: bool, host: str | None) -> int:
    with writing(run_dir, START_BYTES):
        coordinator, store = build(config, run_dir, resume=resume)
    hub = coordinator.hub
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, coordinator.phases.stop, "stopped")
    loop.add_signal_handler(signal.SIGINT, coordinator.phases.stop, "interrupted")
    with writing(run_dir, START_BYTES):
        _announce(run_dir, hub.router.address, hub.run_id, host)
    try:
        await coordinator.run()
    finally:
        hub.router.close()
        store.close()
    if coordinator.phases.outcome == "failed":  # What fails behind the end changes nothing.
        print(f"error: {hub.failed}", file=sys.stderr)
        return 1
    return 0


def _announce(run_dir: Path, address: str, run_id: str, host: str | None = None) -> None:
    """Write the address for the supervisor.

    `host`: this host's name for others, where the address binds all of its interfaces."""
    if host is not None:
        address = f"tcp://{host}:{address.rsplit(':', 1)[1]}"
    told = {"address": address, "host": socket.gethostname(), "pid": os.getpid(), "run_id": run_id}
    write_atomically(run_dir / COORDINATOR_FILE, json.dumps(told))


def main(argv: list[str] | None = None) -> int:
    """Run the role's command line, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--resume", action="store_true", help="go on with what the folder holds")
    parser.add_argument("--patient", action="store_true", help="wait for a full disk, or for SQL")
    parser.add_argument("--announce", metavar="HOST", help="this host's name for the other hosts")
    arguments = parser.parse_args(argv)
    memory.give_back()
    stack_dumps.log_and_listen()
    try:
        config = read_config(arguments.run_dir)
        if arguments.patient and (problem := lack_of_room(arguments.run_dir, START_BYTES)):
            _wait_for_room(arguments.run_dir, problem)
        options = {"resume": arguments.resume, "host": arguments.announce}
        return asyncio.run(_main(config, arguments.run_dir, **options))
    except (UserError, StorageBlockedError) as error:
        is_disk = isinstance(error, StorageBlockedError)
        if arguments.patient and (is_disk or isinstance(error, DatabaseAwayError)):
            _wait_for_room(arguments.run_dir, str(error))
            os.execv(sys.executable, sys.orig_argv)  # From the beginning, as another process.
        print(f"error: {'to start, the run needs ' if is_disk else ''}{error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
