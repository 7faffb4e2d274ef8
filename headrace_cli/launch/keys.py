"""Keys of a run, and how a process from outside finds the run by its folder.

In: a run folder and its configuration. Out: the configuration with `transport.curve_keys`, and for
a process that joins, the link of the coordinator. Promises: every run has keys, made where the
recipe names none, in a folder of the run that its owner alone can open; so only processes that can
read that folder can join the run.
"""

import json
import os
import shlex
import socket
from pathlib import Path

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.transport.curve import has_keys, make_keys
from headrace.protocol.transport.sockets import Link, is_loopback
from headrace.run_files import run_folder


def with_keys(run_dir: Path, config: RunConfig) -> RunConfig:
    """Return the configuration of a run that starts, with keys; write it where they are new."""
    folder = keys_of(run_dir, config)
    if folder == run_dir / run_folder.KEYS and not has_keys(folder):
        make_keys(folder)
    if config.transport.curve_keys == str(folder):
        return config
    transport = config.transport.model_copy(update={"curve_keys": str(folder)})
    config = config.model_copy(update={"transport": transport})
    run_folder.write_config(run_dir, config)
    return config


def keys_of(run_dir: Path, config: RunConfig) -> Path:
    """The folder of a run's keys: the one that the recipe names, or the run's own, also where the
    run folder was moved, renamed, or is seen under another path."""
    own = run_dir / run_folder.KEYS
    named = Path(os.path.expanduser(config.transport.curve_keys or own))
    is_renamed = named.name == own.name and own.is_dir() and not named.exists()
    is_own = is_renamed or named.parts[-2:] == own.parts[-2:]
    return own if is_own else named.resolve()


def link_of(run_dir: Path) -> Link:
    """Return the link to a live run. UserError: it is not live, or not reachable from here."""
    here = socket.gethostname()
    try:
        announced = json.loads((run_dir / run_folder.COORDINATOR_FILE).read_text())
        address, host = str(announced["address"]), str(announced.get("host", here))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{run_dir.name} has not started: its coordinator has no address"
        ) from error
    bound, port = address.removeprefix("tcp://").rsplit(":", 1)
    if host == here and not run_folder.is_running(run_dir):
        raise UserError(
            f"{run_dir.name} is not going on; go on with it: headrace train --resume "
            f"{shlex.quote(str(run_dir))}"
        )
    if host != here and is_loopback(bound):
        raise UserError(
            f"{run_dir.name} takes connections from {host} alone; start it with "
            "transport.host=0.0.0.0 and others can join"
        )
    if bound == "0.0.0.0":
        address = f"tcp://{'127.0.0.1' if host == here else host}:{port}"
    config = run_folder.read_config(run_dir)
    return Link(address, config.transport.max_bytes, str(keys_of(run_dir, config)))
