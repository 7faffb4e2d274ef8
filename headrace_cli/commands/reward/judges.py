"""The judges of a recipe without a run, for `headrace reward try` and `label`."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.config.sections.run import RunConfig
from headrace.errors import RunFailedError, UserError, first_error
from headrace.host.hardware import detect
from headrace.protocol.messages.judges import FOLDER, JUDGES_VARIABLE
from headrace.run_files.run_folder import write_config
from headrace_cli.launch.plan import plan_processes
from headrace_cli.launch.process import ChildProcess, ProcessLauncher, describe_exit

LOOK_EVERY_S = 0.2
END_S = 10.0


@asynccontextmanager
async def serve_judges(config: RunConfig) -> AsyncIterator[None]:
    """Serve a recipe's judges, but those that only audit, in the block; UserError when one dies."""
    if not config.reward.judges:
        yield
        return
    with (
        tempfile.TemporaryDirectory(prefix="headrace-judges-") as folder,
        ProcessLauncher() as launcher,
    ):
        run_dir = Path(folder)
        write_config(run_dir, config)
        specs = plan_processes(config, run_dir, detect())
        children = [ChildProcess(spec) for spec in specs if spec.role == "judge" and spec.needed]
        for child in children:
            launcher.start(child, {})
        os.environ[JUDGES_VARIABLE] = str(run_dir / FOLDER)
        try:
            with first_error(UserError, RunFailedError):
                async with asyncio.TaskGroup() as group:
                    watching = group.create_task(_watch(launcher, children))
                    yield
                    watching.cancel()
        finally:
            del os.environ[JUDGES_VARIABLE]
            launcher.end(children, grace_s=END_S)


async def _watch(launcher: ProcessLauncher, children: list[ChildProcess]) -> None:
    while True:
        for child in children:
            if (code := launcher.reap(child)) is not None:
                tail = child.tail(1).removeprefix("error: ")
                raise UserError(f"{child.spec.name} ended ({describe_exit(code)}): {tail}")
        await asyncio.sleep(LOOK_EVERY_S)
