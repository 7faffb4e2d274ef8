"""A judge's server: its address, and how it is asked.

In: options, prompts. Out: the address as it is now (a server's URL, or that of a judge of the run,
which has a new one when it was started again, and none before it serves); replies, and what they
took. Promises: the same question is asked once as long as its answer is kept; transient failures
(no connection, 408, 409, 425, 429, 5xx, an unreadable answer) are retried, ever later, as the
server asks for it, within the caller's deadline; others are a JudgeError at once; a server's
`Retry-After` delays all callers. The key is in no text.
"""

import asyncio
import hashlib
import os
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from headrace.errors import UserError
from headrace.protocol.messages.judges import JUDGES_VARIABLE, read_address
from rewards.functions.arguments import ScoringError
from rewards.judging.options import Options
from rewards.judging.readings import JudgeReply
from rewards.judging.wire import body_of, path_of, read_reply


class JudgeAddress(NamedTuple):
    """`base` ends where `/chat/completions` begins."""

    base: str
    model: str
    key: str | None = None


AddressLookup = Callable[[], JudgeAddress | None]


def address_lookup(options: Options) -> AddressLookup:
    """Return a lookup of the judge's address; UserError where there can be none."""
    if options.url is not None:
        address = _of_url(options.url, options)
        return lambda: address
    name, folder = options.judge, os.environ.get(JUDGES_VARIABLE)
    assert name is not None

    def now() -> JudgeAddress | None:
        found = read_address(Path(folder), name) if folder else None
        return None if found is None else JudgeAddress(found.base, found.model, found.key)

    return now


def _of_url(url: str, options: Options) -> JudgeAddress:
    assert options.model is not None
    key = None
    if (name := options.api_key_env) is not None:
        key = os.environ.get(name, "").strip()  # httpx shows a header that it refuses
        if not (key and key.isascii() and key.isprintable()):
            text = f"option api_key_env of kind 'judge': there is no variable {name} with a key"
            raise UserError(text)
    bare = url.rstrip("/")
    base = bare if urlsplit(bare).path else f"{bare}/v1"
    return JudgeAddress(base, options.model, key)


MINUTE_S = 60.0


def backoff_s(failures: int, *, first_s: float, longest_s: float, chance: float) -> float:
    """Return the seconds to wait after this number of failures in a row, which double.

    `chance` in [0, 1) takes half to all of it, so that clients that failed together retry apart."""
    # 2**60 is longer than any wait, and a float.
    whole = min(longest_s, first_s * 2.0 ** min(failures - 1, 60))
    return whole * (0.5 + 0.5 * chance)


def retry_after_s(header: str | None, date: str | None = None) -> float | None:
    """Return the seconds in a `Retry-After`, if any: a number, or a date later than `Date`."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        at, now = map(parsedate_to_datetime, (header, date or formatdate(usegmt=True)))
    except ValueError:
        return None
    # By the server's clock, which need not agree with ours. HTTP has no dates but GMT.
    return max(0.0, (at.replace(tzinfo=None) - now.replace(tzinfo=None)).total_seconds())


class RateLimiter:
    """Limits entries to `per_minute` (None: no limit), first come, first served.

    They are evenly spaced, so that nobody waits for a minute that others filled at once. Only the
    first in the queue has a turn: those who give up leave none unused."""

    def __init__(
        self,
        per_minute: int | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._spacing_s = 0.0 if per_minute is None else MINUTE_S / per_minute
        self._clock, self.sleep = clock, sleep
        self._next = self._closed_until = float("-inf")
        self._queue = asyncio.Lock()

    async def enter(self) -> None:
        """Return when it is the caller's turn."""
        async with self._queue:
            while True:
                turn = max(self._clock(), self._next, self._closed_until)
                if (wait := turn - self._clock()) > 0:
                    await self.sleep(wait)
                self._next = turn + self._spacing_s  # Not before: who gives up had none.
                if self._clock() >= self._closed_until:
                    return

    def hold(self, seconds: float) -> None:
        """Let nobody enter for this many seconds."""
        self._closed_until = max(self._closed_until, self._clock() + seconds)


if TYPE_CHECKING:
    import httpx

CONNECT_S = 10.0
TRANSIENT_STATUSES = frozenset({408, 409, 425, 429})
"""Statuses below 500 that may be others the next time."""
_SHOWN = 300


class JudgeError(ScoringError):
    """The judge gave no answer."""


class TransientJudgeError(JudgeError):
    """It may give one later, after `after_s` where the server says so."""

    def __init__(self, text: str, after_s: float | None = None) -> None:
        super().__init__(text)
        self.after_s = after_s


@dataclass
class JudgeUsage:
    """Requests, tokens and last problem of one response's judgement."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cached: int = 0
    problem: str = ""
    """Cause of the last failure."""

    def parts(self, options: Options) -> dict[str, float]:
        """Numbers to look at; the cost in the currency of the prices."""
        cost = self.tokens_in * options.price_in + self.tokens_out * options.price_out
        return {
            "judge_requests": float(self.requests),
            "judge_tokens_in": float(self.tokens_in),
            "judge_tokens_out": float(self.tokens_out),
            "judge_cost": cost / 1e6,
            "judge_cached": float(self.cached),
        }


class JudgeServer:
    """One judge. Used by one event loop."""

    def __init__(self, options: Options, where: AddressLookup) -> None:
        self._options, self._where = options, where
        self._pace = RateLimiter(options.requests_per_minute)
        self._cache: OrderedDict[bytes, JudgeReply] = OrderedDict()
        """The replies asked for last, by the hash of the question."""
        self._client: httpx.AsyncClient | None = None

    async def ask(self, prompt: str, usage: JudgeUsage, images: Sequence[str] = ()) -> JudgeReply:
        """Return the reply to a prompt with images (URLs); JudgeError after all attempts."""
        failures = 0
        while True:
            try:
                return await self._once(prompt, usage, images)
            except TransientJudgeError as error:
                failures += 1
                usage.problem = str(error)
                if failures >= self._options.most_attempts:
                    raise JudgeError(f"{error} ({failures} attempts)") from error
                await self._wait(failures, error.after_s)

    async def _wait(self, failures: int, after_s: float | None) -> None:
        wait = backoff_s(
            failures,
            first_s=self._options.backoff_s,
            longest_s=self._options.longest_backoff_s,
            chance=random.random(),
        )
        if after_s is not None:
            self._pace.hold(after_s)
        await self._pace.sleep(max(wait, after_s or 0.0))

    async def _once(self, prompt: str, usage: JudgeUsage, images: Sequence[str]) -> JudgeReply:
        address = self._where()
        if address is None:
            raise TransientJudgeError(f"the run's judge {self._options.judge!r} does not serve yet")
        body = body_of(prompt, address.model, self._options, images)
        key = hashlib.sha256(body).digest()
        if (known := self._cache.get(key)) is not None:
            self._cache.move_to_end(key)
            usage.cached += 1
            return known
        await self._pace.enter()
        usage.requests += 1
        answer = await self.request(address, path_of(self._options), body)
        try:
            reply = read_reply(answer, self._options)
        except (msgspec.MsgspecError, ValueError) as error:
            raise TransientJudgeError(f"{address.base} sent no answer: {error}") from error
        usage.tokens_in += reply.tokens_in
        usage.tokens_out += reply.tokens_out
        self._cache[key] = reply
        if len(self._cache) > self._options.cache:
            self._cache.popitem(last=False)
        return reply

    async def request(self, address: JudgeAddress, path: str, body: bytes | None = None) -> bytes:
        """Return the answer to a POST, or a GET without a body; JudgeError without success."""
        import httpx

        method, url = "GET" if body is None else "POST", f"{address.base}{path}"
        headers = {"Content-Type": "application/json"}
        if address.key is not None:
            headers["Authorization"] = f"Bearer {address.key}"
        try:
            response = await self._open().request(method, url, headers=headers, content=body)
        except httpx.RequestError as error:
            text = f"{url} does not answer: {str(error) or type(error).__name__}"
            raise TransientJudgeError(text) from error
        if response.is_success:
            return response.content
        text = f"{url}: {response.status_code}, {_message(response.content)}"
        if address.key is not None:
            text = text.replace(address.key, "***")
        status = response.status_code
        if status >= 500 or status in TRANSIENT_STATUSES:
            after, date = map(response.headers.get, ("Retry-After", "Date"))
            raise TransientJudgeError(text, retry_after_s(after, date))
        raise JudgeError(text)

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _open(self) -> "httpx.AsyncClient":
        import httpx

        if self._client is None:
            timeout = httpx.Timeout(self._options.request_timeout_s, connect=CONNECT_S, pool=None)
            # A judge of the run is on this machine, whatever proxy there is for others.
            self._client = httpx.AsyncClient(
                timeout=timeout,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
                trust_env=self._options.judge is None,
            )
        return self._client


def _message(body: bytes) -> str:
    """Return the message of an error's body, on one line."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = body.decode(errors="replace")
    if isinstance(found, dict):
        found = found.get("error", found)
    if isinstance(found, dict):
        found = found.get("message", found)
    return " ".join(str(found).split())[:_SHOWN]
