"""A run's own keys, and joining a run by its folder."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.config.sections.run import RunConfig
from headrace.errors import UserError
from headrace.protocol.messages.control import Heartbeat
from headrace.protocol.transport.curve import make_keys
from headrace.protocol.transport.sockets import BlockingDealer, BlockingRouter, Link
from headrace.run_files import run_folder
from headrace.run_files.run_folder import KEYS
from headrace_cli.cli import main
from headrace_cli.launch.keys import link_of, with_keys

Make = Callable[..., RunConfig]


@pytest.fixture
def config(make_config: Make, tmp_path: Path) -> RunConfig:
    return make_config(f'root="{tmp_path}/runs"')


@pytest.fixture
def run_dir(config: RunConfig) -> Path:
    return run_folder.make_run_folder(config)


def announce(run_dir: Path, address: str, host: str = socket.gethostname()) -> None:
    told = {"address": address, "host": host, "pid": 1, "run_id": run_dir.name}
    (run_dir / "coordinator.json").write_text(json.dumps(told))


def test_a_run_makes_keys_of_its_own_once(run_dir: Path, config: RunConfig) -> None:
    started = with_keys(run_dir, config)
    keys = run_dir / KEYS
    assert started.transport.curve_keys == str(keys)
    assert run_folder.read_config(run_dir) == started
    assert keys.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
    before = {path: path.read_bytes() for path in keys.iterdir()}
    assert with_keys(run_dir, started) == started
    assert {path: path.read_bytes() for path in keys.iterdir()} == before


def test_no_two_runs_share_keys(run_dir: Path, config: RunConfig) -> None:
    other = run_folder.make_run_folder(config)
    for folder in (run_dir, other):
        with_keys(folder, config)
    secrets = {(d / KEYS / "client.key_secret").read_bytes() for d in (run_dir, other)}
    assert len(secrets) == 2


@pytest.mark.parametrize("named", ["~/mine", "mine"])
def test_keys_that_a_resume_names_are_used(
    run_dir: Path, config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """No shell expands the ~ of transport.curve_keys=~/mine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    transport = config.transport.model_copy(update={"curve_keys": named})
    found = with_keys(run_dir, config.model_copy(update={"transport": transport}))
    assert found.transport.curve_keys == str(tmp_path / "mine")


def test_keys_that_the_recipe_names_are_used(
    run_dir: Path, config: RunConfig, tmp_path: Path
) -> None:
    make_keys(tmp_path / "mine")
    transport = config.transport.model_copy(update={"curve_keys": str(tmp_path / "mine")})
    named = config.model_copy(update={"transport": transport})
    assert with_keys(run_dir, named) == named
    assert not (run_dir / KEYS).exists()


@pytest.mark.parametrize("name", [None, "another-name"])
def test_a_run_folder_that_was_moved_keeps_its_keys(
    run_dir: Path, config: RunConfig, name: str | None
) -> None:
    started = with_keys(run_dir, config)
    moved = run_dir.parent.parent / "elsewhere" / (name or run_dir.name)
    moved.parent.mkdir()
    run_dir.rename(moved)
    assert with_keys(moved, started).transport.curve_keys == str(moved / KEYS)


def test_who_can_read_the_run_folder_can_join(run_dir: Path, config: RunConfig) -> None:
    keys = with_keys(run_dir, config).transport.curve_keys
    router = BlockingRouter("127.0.0.1", 0, max_bytes=1 << 20, curve_keys=keys)
    announce(run_dir, router.address)
    with run_folder.locked(run_dir):
        dealer = BlockingDealer(link_of(run_dir), "generator-7")
    try:
        dealer.send(Heartbeat())
        assert router.receive(20.0) == ("generator-7", Heartbeat())
    finally:
        dealer.close()
        router.close()


def test_where_a_run_is(run_dir: Path, config: RunConfig) -> None:
    """On this machine, and on another one that sees the folder."""
    started = with_keys(run_dir, config)
    keys, limit = started.transport.curve_keys, int(config.transport.max_message_mib * 2**20)
    with pytest.raises(UserError, match="has not started"):
        link_of(run_dir)
    announce(run_dir, "tcp://0.0.0.0:7001")
    with pytest.raises(UserError, match=rf"is not going on; .* --resume {run_dir}$"):
        link_of(run_dir)
    with run_folder.locked(run_dir):
        assert link_of(run_dir) == Link("tcp://127.0.0.1:7001", limit, keys)
    announce(run_dir, "tcp://0.0.0.0:7001", "far-away")
    assert link_of(run_dir) == Link("tcp://far-away:7001", limit, keys)
    announce(run_dir, "tcp://10.0.0.7:7001", "far-away")
    assert link_of(run_dir).address == "tcp://10.0.0.7:7001"
    announce(run_dir, "tcp://127.0.0.1:7001", "far-away")
    with pytest.raises(UserError, match=r"from far-away alone; .*transport.host=0.0.0.0"):
        link_of(run_dir)


def test_the_command_takes_address_and_keys_from_the_folder(
    run_dir: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = with_keys(run_dir, config).transport.curve_keys
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    announce(run_dir, address)
    called: list[list[str]] = []

    def execute(path: str, argv: list[str], environment: dict[str, str]) -> None:
        called.append(list(argv))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execute)
    with listener, run_folder.locked(run_dir), pytest.raises(SystemExit):
        main(["generator", "--connect", "latest", "--root", str(run_dir.parent)])
    argv = called[0]
    assert argv[argv.index("--connect") + 1] == address
    assert argv[argv.index("--curve-keys") + 1] == keys
