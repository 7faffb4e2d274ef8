"""Process of a learner rank: `python -m learner.run --run-dir DIR --connect ADDR`.

Its rank comes from its options or, without those, from torchrun's variables (RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Reads the run's resolved configuration, joins the other
ranks, builds models and engines (from the newest checkpoint if there is one), and runs the loop.
Rank 0 talks to the coordinator and serves weights. Exit codes: 0 done, 1 ours, 2 the user's
mistake, 130 interrupted, 143 ended by SIGTERM.
"""

from headrace.host.memory import lasting

# A third of the time of a start and of an end.
with lasting():
    import argparse
    import contextlib
    import logging
    import os
    import signal
    import sys
    import time
    from collections.abc import Callable, Sequence
    from functools import partial
    from pathlib import Path

    import torch

    from headrace.config.sections.run import RunConfig
    from headrace.errors import UserError, exit_code
    from headrace.host import stack_dumps
    from headrace.host.hardware import cores_of, cpu_quota
    from headrace.host.progress_reporter import ProgressReporter
    from headrace.protocol.messages.control import Trouble
    from headrace.protocol.transport.endpoints import identity_of
    from headrace.protocol.transport.sockets import Link
    from headrace.run_files.run_folder import read_config
    from learner.device import choose_device
    from learner.loop import run_loop
    from learner.models.deepspeed_engine import join_ranks
    from learner.process.inbox import ASKED, NAME, Inbox, WeightOrigin
    from learner.process.rank_broadcast import RankRelay
    from learner.process.trainer import Trainer
    from learner.process.weight_publishing import WeightPublisher

_LOG = logging.getLogger("headrace.learner")
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")
REPRODUCIBLE = {"MKL_CBWR": "AUTO"}
"""Without it, the last bit of MKL's products may depend on operands' addresses.

So on some processors: a resumed run would differ from one that was never interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one rank until the coordinator ends it; return the exit code."""
    options = _parse(argv)
    # MKL reads it at its first product.
    os.environ.update({k: v for k, v in REPRODUCIBLE.items() if k not in os.environ})
    stack_dumps.log_and_listen()
    return exit_code(lambda: _run(options))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="learner.run")
    parser.add_argument("--run-dir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--connect", required=True, help="the coordinator's address")
    parser.add_argument("--rank", type=int, help="of this process; torchrun's where it is left out")
    parser.add_argument("--world-size", type=int, help="ranks in all")
    parser.add_argument("--master-address", default="127.0.0.1", help="rank 0's host")
    parser.add_argument("--master-port", type=int, help="rank 0's port")
    parser.add_argument("--cpus", type=cores_of, help="cores to run on, such as 1,2")
    options = parser.parse_args(argv)
    options.local_rank = options.rank
    if options.rank is None:
        missing = [name for name in TORCHRUN if name not in os.environ]
        if missing:
            parser.error(f"give --rank, --world-size and --master-port; no {missing[0]} is set")
        numbers = [int(os.environ[name]) for name in TORCHRUN[:-1]]
        options.rank, options.local_rank, options.world_size, options.master_port = numbers
        options.master_address = os.environ[TORCHRUN[-1]]
    return options


def _run(options: argparse.Namespace) -> int:
    config = read_config(options.run_dir)
    if options.world_size != config.learner.ranks:
        raise UserError(f"--world-size {options.world_size}, but learner.ranks is "
                        f"{config.learner.ranks}")  # fmt: skip
    device = choose_device(config.learner.device, options.local_rank)
    if device.type == "cpu":
        use_cores(config, options.cpus)
    join_ranks(
        rank=options.rank,
        world_size=options.world_size,
        port=options.master_port,
        device=device,
        address=options.master_address,
        local_rank=options.local_rank,
    )
    relay = RankRelay(rank=options.rank, world=options.world_size)
    work = ProgressReporter(config.transport.stall_timeout_s)
    link = Link(options.connect, config.transport.max_bytes, config.transport.curve_keys)
    try:
        with contextlib.ExitStack() as stack:
            # While it loads, a rank sends its progress and nothing else, all under one name.
            with work.heartbeats(link, identity_of(NAME)):
                trainer = Trainer(
                    config, options.run_dir, rank=options.rank, device=device, relay=relay,
                    reads_checkpoints=options.local_rank == 0, work=work,
                )  # fmt: skip
            inbox, publisher = None, None
            if options.rank == 0:
                publisher = stack.enter_context(
                    WeightPublisher(
                        options.run_dir.name, options.run_dir, config.transport,
                        num_bytes=trainer.models.policy_bytes, coordinator=options.connect,
                        tell=lambda text: trainer.tell(text),
                        broadcasts=device if config.generator.weights == "broadcast" else None,
                    )
                )  # fmt: skip
                own = partial(weights_of, trainer)
                inbox = stack.enter_context(
                    Inbox(link, config.transport, weights=own, work=work, ranks=options.world_size)
                )
                trainer.notices = _checkpoint_incidents(options.run_dir / "checkpoints", trainer)
                trainer.tell, trainer.send = _disk_reporter(inbox, work), inbox.announce
                work.between = partial(trainer.announce_written, publisher)
            else:
                # Rank 0 hears the request to end and passes it on between two updates.
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                work.between = trainer.checkpoints.writing.written
            reason = run_loop(inbox, publisher, relay, trainer)
            _LOG.info("rank %d ends: %s", options.rank, reason)
    finally:
        torch.distributed.destroy_process_group()
    return 128 + signal.SIGTERM if reason == ASKED else 0


def weights_of(trainer: Trainer) -> WeightOrigin:
    """Return the origin of the learner's weights, for the coordinator."""
    at, found = trainer.position, trainer.resumed_from
    return WeightOrigin(at.update, at.batch_id, str(found) if found else None, at.skipped)


def _checkpoint_incidents(root: Path, trainer: Trainer) -> list[Trouble]:
    """Return an incident per skipped checkpoint; UserError where all were skipped."""
    skipped = trainer.checkpoints.passed_over
    if skipped and trainer.resumed_from is None:
        raise UserError(
            f"none of the checkpoints in {root} is whole ({skipped[0]}): put one back from a copy, "
            "or move them away to go on from the starting model"
        )
    return [Trouble(kind="checkpoint_skipped", text=text) for text in skipped]


def _disk_reporter(inbox: Inbox, work: ProgressReporter) -> Callable[[str], None]:
    """Return a function that reports a lacking disk to the log and any coordinator, old or new."""

    def tell(text: str) -> None:
        _LOG.warning("%s", f"waits: {text}" if text else "goes on")
        work.wait = (text, time.monotonic()) if text else None
        inbox.send(Trouble(kind="disk", text=text, waits=True))

    return tell


def use_cores(config: RunConfig, cpus: list[int] | None) -> None:
    """Pin this rank to cores and set its number of threads.

    Few beside generators that work at the same time, many where they wait for the learner."""
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            raise UserError(
                f"cannot run on cores {cpus} ({error}); choose others with learner.cpus"
            ) from error
    threads = config.learner.threads
    if config.schedule.mode != "streaming":
        cores = min(len(os.sched_getaffinity(0)), cpu_quota() or sys.maxsize)
        threads = config.learner.lockstep_threads or max(1, cores // config.learner.ranks)
    torch.set_num_threads(threads)


if __name__ == "__main__":
    sys.exit(main())
