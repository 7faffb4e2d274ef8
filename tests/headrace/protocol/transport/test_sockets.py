"""The sockets over real ZeroMQ: who gets in, what arrives, what happens to garbage."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from headrace.errors import ProtocolError, RunFailedError, UserError
from headrace.host.hardware import free_port
from headrace.protocol.messages.control import (
    Command,
    Heartbeat,
    Hello,
    Shutdown,
    WeightBytes,
    WeightRequest,
)
from headrace.protocol.transport.codec import MAGIC
from headrace.protocol.transport.curve import has_keys, load_key, make_keys
from headrace.protocol.transport.sockets import (
    BlockingDealer,
    BlockingRouter,
    Dealer,
    Link,
    Router,
    is_loopback,
    sending_heartbeats,
)

LIMIT = 1 << 20
DEADLINE_S = 20.0


def hello(name: str, pid: int = 1) -> Hello:
    return Hello(role="reward", name=name, pid=pid, host="here")


@contextlib.contextmanager
def routed(keys: Path | None = None, host: str = "127.0.0.1") -> Iterator[Router]:
    router = Router(host, 0, max_bytes=LIMIT, curve_keys=str(keys) if keys else None)
    try:
        yield router
    finally:
        router.close()


def link_to(router: Router | BlockingRouter, keys: Path | None = None) -> Link:
    address = f"tcp://127.0.0.1:{router.port}"
    return Link(address, LIMIT, str(keys) if keys else None)


@contextlib.contextmanager
def dealt(link: Link, name: str) -> Iterator[Dealer]:
    dealer = Dealer(link, name)
    try:
        yield dealer
    finally:
        dealer.close()


@contextlib.contextmanager
def raw_peer(router: Router, name: bytes) -> Iterator[zmq.Socket[bytes]]:
    """A ZeroMQ peer that does not speak our protocol."""
    context = zmq.Context()
    peer = context.socket(zmq.DEALER)
    peer.setsockopt(zmq.IDENTITY, name)
    peer.setsockopt(zmq.LINGER, 0)
    peer.connect(router.address)
    try:
        yield peer
    finally:
        peer.close()
        context.term()


async def arrival(router: Router) -> tuple[str, object]:
    async with asyncio.timeout(DEADLINE_S):
        return await router.receive()


async def test_there_and_back() -> None:
    with routed() as router, dealt(link_to(router), "reward-0") as dealer:
        await dealer.send(hello("reward-0"))
        assert await arrival(router) == ("reward-0", hello("reward-0"))
        assert await router.send("reward-0", Shutdown(reason="done"))
        assert await dealer.receive() == Shutdown(reason="done")


async def test_messages_wait_while_there_is_no_coordinator() -> None:
    port = free_port()
    with dealt(Link(f"tcp://127.0.0.1:{port}", LIMIT), "reward-0") as dealer:
        await dealer.send(hello("reward-0"))
        router = Router("127.0.0.1", port, max_bytes=LIMIT)
        try:
            assert await arrival(router) == ("reward-0", hello("reward-0"))
        finally:
            router.close()


async def test_a_receive_with_a_deadline_ends_and_loses_nothing() -> None:
    with routed() as router, dealt(link_to(router), "reward-0") as dealer:
        await dealer.send(hello("reward-0"))
        await arrival(router)
        assert await dealer.receive_within(0.0) is None
        assert await dealer.receive_within(0.05) is None
        await router.send("reward-0", Shutdown(reason="done"))
        assert await dealer.receive_within(DEADLINE_S) == Shutdown(reason="done")


async def test_a_receive_that_is_cancelled_loses_nothing() -> None:
    with routed() as router, dealt(link_to(router), "reward-0") as dealer:
        await dealer.send(hello("reward-0"))
        await arrival(router)
        waiting = asyncio.create_task(dealer.receive())
        await asyncio.sleep(0)
        await router.send("reward-0", Shutdown(reason="done"))
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert waiting.cancelled()
        async with asyncio.timeout(DEADLINE_S):
            assert await dealer.receive() == Shutdown(reason="done")


async def test_sending_to_nobody_says_so() -> None:
    with routed() as router:
        assert not await router.send("reward-9", Shutdown(reason="done"))


async def test_a_peer_that_left_is_nobody() -> None:
    with routed() as router:
        with dealt(link_to(router), "reward-0") as dealer:
            await dealer.send(hello("reward-0"))
            await arrival(router)
        async with asyncio.timeout(DEADLINE_S):
            while await router.send("reward-0", Shutdown(reason="done")):
                await asyncio.sleep(0.01)


async def test_garbage_is_counted_and_the_next_message_arrives() -> None:
    reasons: list[tuple[str, str]] = []
    router = Router(
        "127.0.0.1", 0, max_bytes=LIMIT, on_reject=lambda *reason: reasons.append(reason)
    )
    try:
        with raw_peer(router, b"stranger\xff") as peer:
            peer.send(b"")
            peer.send(b"GET / HTTP/1.1")
            peer.send_multipart([MAGIC + b"\xc1", b""])
            peer.send_multipart([b"HR\x7f\x80", b""])
            peer.send_multipart([b"a", b"b", b"c"])
            with dealt(link_to(router), "reward-0") as dealer:
                await dealer.send(hello("reward-0"))
                assert await arrival(router) == ("reward-0", hello("reward-0"))
                while len(reasons) < 5:
                    await dealer.send(Heartbeat())
                    assert await arrival(router) == ("reward-0", Heartbeat())
    finally:
        router.close()
    assert len(reasons) == 5
    assert {name for name, _ in reasons} == {"stranger\ufffd"}
    assert any("protocol version 127" in reason for _, reason in reasons)


async def test_plain_tcp_noise_does_no_harm() -> None:
    with routed() as router:
        with socket.create_connection(("127.0.0.1", router.port)) as noise:
            noise.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        with dealt(link_to(router), "reward-0") as dealer:
            await dealer.send(hello("reward-0"))
            assert await arrival(router) == ("reward-0", hello("reward-0"))


async def test_a_message_over_the_limit_never_reaches_the_reader() -> None:
    with routed() as router, raw_peer(router, b"big") as peer:
        peer.send_multipart([MAGIC + b"\x80", bytes(2 * LIMIT)])
        with dealt(link_to(router), "reward-0") as dealer:
            await dealer.send(hello("reward-0"))
            assert await arrival(router) == ("reward-0", hello("reward-0"))
            with pytest.raises(ProtocolError, match="over the limit"):
                await dealer.send(Shutdown(reason="x" * LIMIT))


async def test_a_role_reads_past_garbage() -> None:
    with routed() as router, dealt(link_to(router), "reward-0") as dealer:
        await dealer.send(hello("reward-0"))
        await arrival(router)
        await router._socket.send_multipart([b"reward-0", b"noise"])
        await router.send("reward-0", Shutdown(reason="done"))
        assert await dealer.receive() == Shutdown(reason="done")


async def test_a_process_of_the_same_name_takes_over() -> None:
    """As after a crash that left the old connection half open."""
    with routed() as router, dealt(link_to(router), "reward-0") as old:
        await old.send(hello("reward-0", pid=1))
        await arrival(router)
        with dealt(link_to(router), "reward-0") as new:
            await new.send(hello("reward-0", pid=2))
            assert await arrival(router) == ("reward-0", hello("reward-0", pid=2))
            assert await router.send("reward-0", Shutdown(reason="for the new one"))
            assert await new.receive() == Shutdown(reason="for the new one")
            assert await old.receive_within(0.2) is None


async def test_pulse_beats_while_the_main_thread_sleeps() -> None:
    with routed() as router:
        with sending_heartbeats(link_to(router), "learner-0", interval_s=0.02):
            time.sleep(0.3)
        beats = [await arrival(router) for _ in range(5)]
    assert beats == [("learner-0", Heartbeat())] * 5


async def test_pulse_does_not_take_the_place_of_the_process() -> None:
    with routed() as router, dealt(link_to(router), "reward-0") as dealer:
        await dealer.send(hello("reward-0"))
        await arrival(router)
        with sending_heartbeats(link_to(router), "reward-0", interval_s=0.02):
            assert await arrival(router) == ("reward-0", Heartbeat())
            await router.send("reward-0", Shutdown(reason="done"))
            assert await dealer.receive() == Shutdown(reason="done")


async def test_pulse_of_a_process_that_ends_holds_nobody_up() -> None:
    """No coordinator: the process must be able to end all the same."""
    code = (
        "from headrace.protocol.transport.sockets import sending_heartbeats\n"
        "from headrace.protocol.transport.sockets import Link\n"
        "with sending_heartbeats(Link('tcp://127.0.0.1:1'), 'reward-0', interval_s=0.01): pass\n"
        "print('ended')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[4],
    )
    assert done.stdout == "ended\n", done.stderr


# -- blocking sockets ------------------------------------------------------------------------------


def test_blocking_router_and_dealer_serve_pieces() -> None:
    router = BlockingRouter("127.0.0.1", 0, max_bytes=LIMIT)
    dealer = BlockingDealer(link_to(router), "generator-0")
    try:
        assert router.receive(timeout_s=0.0) is None
        dealer.send(WeightRequest(version=3, offset=0))
        assert router.receive(DEADLINE_S) == ("generator-0", WeightRequest(version=3, offset=0))
        piece = WeightBytes(version=3, offset=0, data=b"\0" * 1000)
        assert router.send("generator-0", piece)
        assert dealer.receive(DEADLINE_S) == piece
        assert dealer.receive(timeout_s=0.01) is None
        assert not router.send("generator-9", piece)
    finally:
        dealer.close()
        router.close()


# -- addresses and keys ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("*", False),
        ("", False),
        ("127.0.0.1.example.org", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "10.0.0.1"])
def test_no_bind_off_loopback_without_keys(host: str) -> None:
    with pytest.raises(UserError, match="headrace keys"):
        Router(host, 0, max_bytes=LIMIT)
    with pytest.raises(UserError, match="headrace keys"):
        BlockingRouter(host, 0, max_bytes=LIMIT)


def test_a_port_in_use_is_the_users_mistake() -> None:
    with routed() as router, pytest.raises(UserError, match="choose another"):
        Router("127.0.0.1", router.port, max_bytes=LIMIT)


def test_an_address_that_is_none() -> None:
    with pytest.raises(UserError, match="tcp://HOST:PORT"):
        BlockingDealer(Link("here"), "reward-0")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    make_keys(folder)
    return folder


def test_an_address_of_another_machine_is_the_users_mistake(keys: Path) -> None:
    with pytest.raises(UserError, match=r"transport\.host an IPv4 address of this machine"):
        Router("192.0.2.1", 0, max_bytes=LIMIT, curve_keys=str(keys))


def test_keys_are_for_their_owner_only(keys: Path) -> None:
    assert keys.stat().st_mode & 0o077 == 0
    assert has_keys(keys)
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o600}
    assert len(list(keys.iterdir())) == 4
    with pytest.raises(UserError, match="already holds keys"):
        make_keys(keys)


def test_missing_and_broken_keys(tmp_path: Path, keys: Path) -> None:
    with pytest.raises(UserError, match="no CURVE key"):
        Router("127.0.0.1", 0, max_bytes=LIMIT, curve_keys=str(tmp_path / "none"))
    with pytest.raises(UserError, match="no CURVE key"):
        BlockingDealer(Link("tcp://127.0.0.1:1", curve_keys=str(tmp_path / "none")), "reward-0")
    (keys / "server.key_secret").write_text("nothing of the kind")
    with pytest.raises(UserError, match="no usable CURVE key"):
        Router("127.0.0.1", 0, max_bytes=LIMIT, curve_keys=str(keys))


def test_a_secret_key_that_is_none_or_another_pairs_is_not_used(tmp_path: Path, keys: Path) -> None:
    """Copied from the wrong file, or damaged: nobody could ever be reached with it."""
    path, other = keys / "client.key_secret", tmp_path / "other"
    make_keys(other)
    before, name, _ = path.read_text().rpartition("secret-key")
    behind = (other / path.name).read_text().rpartition("secret-key")[2]
    for text in ((keys / "client.key").read_text(), before + name + behind):
        path.write_text(text)
        with pytest.raises(UserError, match="no usable CURVE key"):
            BlockingDealer(Link("tcp://127.0.0.1:1", curve_keys=str(keys)), "reward-0")


def test_a_secret_that_others_can_read_is_not_used(keys: Path) -> None:
    path = keys / "client.key_secret"
    path.chmod(0o640)
    with pytest.raises(UserError, match=f"open to others: chmod 600 {path}"):
        load_key(str(keys), "client", secret=True)


def test_keys_in_a_folder_that_others_can_read_are_still_secret(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_keys(tmp_path)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


async def test_the_right_keys_get_in(keys: Path) -> None:
    with routed(keys, host="0.0.0.0") as router, dealt(link_to(router, keys), "reward-0") as dealer:
        await dealer.send(hello("reward-0"))
        assert await arrival(router) == ("reward-0", hello("reward-0"))
        await router.send("reward-0", Shutdown(reason="done"))
        assert await dealer.receive() == Shutdown(reason="done")


def test_the_right_keys_get_into_a_blocking_router(keys: Path) -> None:
    router = BlockingRouter("0.0.0.0", 0, max_bytes=LIMIT, curve_keys=str(keys))
    dealer = BlockingDealer(link_to(router, keys), "generator-0")
    try:
        dealer.send(WeightRequest(version=1, offset=0))
        assert router.receive(DEADLINE_S) == ("generator-0", WeightRequest(version=1, offset=0))
    finally:
        dealer.close()
        router.close()


@pytest.mark.parametrize("router_kind", [Router, BlockingRouter])
@pytest.mark.parametrize("stranger", ["other client key", "no keys", "other server key"])
async def test_the_wrong_keys_stay_out(
    tmp_path: Path, keys: Path, stranger: str, router_kind: type[Router | BlockingRouter]
) -> None:
    other = tmp_path / "other"
    make_keys(other)
    if stranger == "other client key":
        # It knows whom to talk to, but was never let in.
        (other / "server.key").write_bytes((keys / "server.key").read_bytes())
    router = router_kind("127.0.0.1", 0, max_bytes=LIMIT, curve_keys=str(keys))
    inside = BlockingDealer(link_to(router, keys), "monitor-0")
    outside = BlockingDealer(link_to(router, None if stranger == "no keys" else other), "reward-0")
    heard: list[object] = []

    async def hear() -> None:
        if isinstance(router, BlockingRouter):
            heard.append(await asyncio.to_thread(router.receive, DEADLINE_S))
        else:
            heard.append(await arrival(router))

    try:
        outside.send(hello("reward-0"))
        async with asyncio.timeout(DEADLINE_S):
            while not router.denied:
                await asyncio.sleep(0.01)
        inside.send(Command(action="stop"))
        await hear()
        assert heard == [("monitor-0", Command(action="stop"))]
        sent = router.send("reward-0", Shutdown(reason="done"))
        assert not (sent if isinstance(sent, bool) else await sent)
    finally:
        inside.close()
        outside._socket.setsockopt(zmq.LINGER, 0)
        outside.close()
        router.close()


@pytest.mark.parametrize("stranger", ["other client key", "no keys"])
def test_who_is_turned_away_is_told_so_instead_of_waiting(
    tmp_path: Path, keys: Path, stranger: str
) -> None:
    other = tmp_path / "other"
    make_keys(other)
    (other / "server.key").write_bytes((keys / "server.key").read_bytes())
    router = BlockingRouter("127.0.0.1", 0, max_bytes=LIMIT, curve_keys=str(keys))
    dealer = BlockingDealer(link_to(router, None if stranger == "no keys" else other), "reward-0")
    dealer._socket.setsockopt(zmq.LINGER, 0)

    def greet_on() -> None:
        for _ in range(int(DEADLINE_S / 0.05)):
            dealer.send(hello("reward-0"))
            time.sleep(0.05)

    try:
        with pytest.raises(RunFailedError, match=r"turned this process away: .* keys of the run"):
            greet_on()
    finally:
        dealer.close()
        router.close()


def test_nothing_is_left_running(keys: Path) -> None:
    before = set(threading.enumerate())
    router = BlockingRouter("127.0.0.1", 0, max_bytes=LIMIT, curve_keys=str(keys))
    router.close()
    with pytest.raises(UserError), routed(keys) as bound:
        BlockingRouter("127.0.0.1", bound.port, max_bytes=LIMIT, curve_keys=str(keys))
    assert set(threading.enumerate()) == before
