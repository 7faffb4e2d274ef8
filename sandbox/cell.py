"""One cell, seen from outside: created, waiting, run once, gone.

In: a program. Out: its result. Promises: `run` returns within the deadline and a moment, whatever
the program does; no more of its output is kept than the limits say; when `run` or `close` has
returned nothing of the cell is left, no process and no mount.
"""

import asyncio
import contextlib
import json
import socket
import time
from dataclasses import asdict
from typing import Any

from headrace.errors import RunFailedError
from sandbox.channel import frame
from sandbox.isolation.factory_client import CellFactoryClient, is_closed
from sandbox.limits import Limits, Program, ProgramResult, Status

MAKE_TIMEOUT_S = 60.0
STEP_S = 0.5
"""Seconds between two looks at the clock: of a standstill of this process no more count."""
PAUSE_S = 0.005
"""Seconds between reads of output that is not kept, so that a flood takes no core."""

CONNECTIONS = ("stdin", "stdout", "stderr", "orders", "verdict", "life")
"""A cell's sockets, in the order in which the cell factory takes them."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Cell:
    """A cell that is ready for a program, or will soon be."""

    def __init__(self, limits: Limits, lines: dict[str, Connection]) -> None:
        self._limits, self._lines = limits, lines
        self.pid = 0
        """Process id of the one above it, once it is ready."""

    @classmethod
    async def make(cls, factory: CellFactoryClient, layer: str, limits: Limits) -> "Cell":
        """Create a cell in this layer that is ready; RunFailedError where it cannot be."""
        settings = {"layer": layer, "limits": asdict(limits), **asdict(factory.python)}
        pairs = {name: socket.socketpair() for name in CONNECTIONS}
        lines: dict[str, Connection] = {}
        try:
            inside = [pair[1].fileno() for pair in pairs.values()]
            factory.order(json.dumps(settings).encode(), inside)
            for name, (outer, _) in pairs.items():
                lines[name] = await asyncio.open_connection(sock=outer)
        except BaseException:
            # First: the loop would go on to watch their numbers, which the next sockets get.
            for _, writer in lines.values():
                writer.close()
            for outer, _ in pairs.values():
                outer.close()
            raise
        finally:
            for _, inner in pairs.values():
                inner.close()
        cell = cls(limits, lines)
        try:
            await cell._get_ready()
        except BaseException:
            await asyncio.shield(cell.close())
            raise
        return cell

    async def _get_ready(self) -> None:
        first, _ = await self._report_within(MAKE_TIMEOUT_S)
        if first is None:
            first = {"broken": f"not made within {MAKE_TIMEOUT_S:g} s"}
        if "ready" not in first:
            why = first.get("broken") or "the launcher is gone"
            raise RunFailedError(f"no cell for a program: {why}")
        self.pid = int(first["ready"])

    @property
    def gone(self) -> bool:
        """True if it ended before it was used: something killed it, or the cell factory."""
        return is_closed(self._lines["life"][1].get_extra_info("socket"))

    async def run(self, program: Program) -> ProgramResult:
        """Run the one program that this cell is for, and take the cell down."""
        seconds = min(program.seconds or self._limits.seconds, self._limits.seconds)
        kept = self._limits.output_bytes
        stdout = asyncio.create_task(_keep(self._lines["stdout"][0], kept))
        stderr = asyncio.create_task(_keep(self._lines["stderr"][0], kept))
        verdicts = asyncio.create_task(self._read_verdicts(program))
        feeding = asyncio.create_task(self._feed(program))
        try:
            report, taken = await self._report_within(seconds)
            await self._end()
        except BaseException:
            await asyncio.shield(self.close())
            raise
        finally:
            feeding.cancel()
        (out, cut), (err, _) = await stdout, await stderr
        lines = await verdicts
        await self.close()
        if report is not None and not ("exit" in report or report.get("cause")):
            raise RunFailedError(f"a cell broke: {report.get('broken') or 'the launcher is gone'}")
        held = sum(line["held"] for line in lines)
        total = len(program.checks.each) if program.checks else 0
        errors = [str(line["error"]) for line in lines if not line["held"]]
        errors += ["not reached"] * (total - len(lines))
        code = None if report is None else report.get("exit")
        return ProgramResult(
            status=_status(report, code, checked=program.checks is not None, right=held == total),
            exit_code=code,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            seconds=taken,
            cut=cut,
            passed=held,
            total=total,
            errors=tuple(errors),
        )

    async def close(self) -> None:
        """End whatever runs in the cell; returns when it is gone."""
        await self._end()
        for _, writer in self._lines.values():
            writer.close()

    async def _end(self) -> None:
        """End the cell, with all that it has said still to be read."""
        life, ending = self._lines["life"]
        for writer in (ending, self._lines["orders"][1]):
            with contextlib.suppress(OSError):
                writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await life.read()

    async def _feed(self, program: Program) -> None:
        """Send the program, its checks and its input."""
        checks = program.checks
        source, tests, stdin = (self._lines[name][1] for name in ("orders", "verdict", "stdin"))
        with contextlib.suppress(OSError):
            if checks is None:
                tests.write_eof()
            else:
                tests.write(frame(asdict(checks)))
            source.write(frame({"source": program.source, "checked": checks is not None}))
            stdin.write(program.stdin.encode(errors="replace"))
            stdin.write_eof()
            for writer in (source, tests, stdin):
                await writer.drain()

    async def _report_within(self, seconds: float) -> tuple[dict[str, Any] | None, float]:
        """Return the next report, None where it is late, and the seconds until then."""
        report, left = asyncio.ensure_future(self._report()), seconds
        while left > 0 and not report.done():
            began, step = time.monotonic(), min(left, STEP_S)
            await asyncio.wait([report], timeout=step)
            left -= min(step, time.monotonic() - began)
        return report.result() if report.done() else None, seconds - left

    async def _report(self) -> dict[str, Any]:
        """Return the next line of cell factory or init process; empty when they are gone."""
        try:
            line = await self._lines["orders"][0].readline()
        except ConnectionError:  # asyncio raises a write's BrokenPipeError at the next read
            line = b""
        return dict(json.loads(line)) if line.endswith(b"\n") else {}

    async def _read_verdicts(self, program: Program) -> list[dict[str, Any]]:
        """Return the checker's lines, as many as there are checks."""
        lines: list[dict[str, Any]] = []
        with contextlib.suppress(ConnectionError):
            while program.checks and len(lines) < len(program.checks.each):
                line = await self._lines["verdict"][0].readline()
                if not line.endswith(b"\n"):
                    break
                lines.append(json.loads(line))
        return lines


def _status(
    report: dict[str, Any] | None, code: int | None, *, checked: bool, right: bool
) -> Status:
    if report is None:
        return "timeout"
    if report.get("cause") == "memory":
        return "memory"
    if checked:
        return "ok" if right else "failed"
    if code is None or code < 0:
        return "killed"
    return "failed" if code else "ok"


async def _keep(stream: asyncio.StreamReader, bound: int) -> tuple[bytes, bool]:
    """Read a stream to its end; return its first `bound` bytes and whether more came."""
    kept = bytearray()
    more = False
    with contextlib.suppress(ConnectionError):
        while part := await stream.read(1 << 16):
            room = bound - len(kept)
            kept += part[:room]
            if len(part) > room:
                more = True
                await asyncio.sleep(PAUSE_S)
    return bytes(kept), more
