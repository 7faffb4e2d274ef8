"""Options of a source of kind `judge`.

In: the options of a recipe. Out: a strict model; `check_options` says in one line what cannot work.
"""

import math
import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from headrace.config.sections.base import StrictModel
from headrace.errors import UserError
from rewards.judging.readings import GROUP

Mode = Literal["pointwise", "pairwise", "free"]
_SCALE = r"(?:\s*\((?:\d+\s*(?:-|\u2013|to)|out of)[^)]{0,12}\))?+"
"""A scale that a judge writes before its score, as in `Score (0-10): 8`."""


class Options(StrictModel):
    """The judge, its questions, the reading of its answers, and the rate of requests."""

    url: str | None = None
    """Server that speaks the protocol of OpenAI, such as `http://127.0.0.1:8000/v1`."""

    judge: str | None = None
    """A judge of the run, `[reward.judges.NAME]`, in the place of `url`."""

    model: str | None = None
    """The model's name at `url`."""

    api_key_env: str | None = None
    """Environment variable that holds the key of `url`."""

    api: Literal["chat", "completions"] = "chat"
    """Ask by /chat/completions or by /completions."""

    extra: dict[str, Any] = Field(default={})
    """Further fields of each request, such as `chat_template_kwargs`."""

    mode: Mode = "pointwise"
    """pointwise: right by a reference? pairwise: better than it? free: a text with a score."""

    reading: Literal["yes_no", "number"] = "yes_no"
    """Of pointwise: the probability of yes, or a number."""

    question_column: str | None = None
    """Column with the question. None: the last message of the user, else the prompt."""

    reference_column: str | None = None
    """Column with the reference (an anchor; of a list the first). None: the right answer."""

    images: bool = False
    """Show the prompt's images as data URLs before the question. False: its text alone."""

    domain: str = "general"
    """Domain whose rule the judge goes by."""

    domain_column: str | None = None
    """Column with the domain, where rows differ."""

    rules: dict[str, str] = Field(default={})
    """The rule of each domain, beside the built-in ones (general, math, code, writing)."""

    system: str | None = None
    """System message."""

    prompt: str | None = None
    """Question to the judge; {question}, {response}, {reference}, {rule}, {yes}, {no}, {min} and
    {max} are filled in, and of pairwise {first} and {second}. None: the mode's own."""

    thought: str | None = Field(default=None, pattern=r"^[\w-]+$")
    """Tag of the response's thought (`think`), which the judge does not see."""

    yes: str = Field(default="yes", min_length=1)
    """Word for yes."""

    no: str = Field(default="no", min_length=1)
    """Word for no."""

    logprobs: bool = True
    """Ask for log-probabilities. False: only the text of an answer counts."""

    top_logprobs: int = Field(default=20, ge=2)
    """Number of most likely tokens to request."""

    pattern: str = rf"(?:score|rating){_SCALE}\W{{0,8}}?(?P<{GROUP}>-?(?:\d+(?:\.\d+)?|\.\d+))"
    """Expression of Python with a group `score`, whose last match is the score of free and of
    numbers; capitals do not matter."""

    scale_min: float = 0.0
    """Lowest number that the judge gives; it pays 0."""

    scale_max: float = 10.0
    """Highest number that the judge gives; it pays 1."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Longest answer. None: 1 for yes or no with logprobs, 8 without, 16 a number, 1024 free."""

    temperature: float = Field(default=0.0, ge=0)
    """Temperature of the judge."""

    attempts: int | None = Field(default=None, ge=1)
    """Attempts within the source's deadline. None: 8 by url, no bound for a run's judge."""

    backoff_s: float = Field(default=0.5, gt=0)
    """Longest wait after the first failure; it doubles with each."""

    longest_backoff_s: float = Field(default=30.0, gt=0)
    """It does not grow beyond this, unless the server asks for more."""

    request_timeout_s: float | None = Field(default=None, gt=0)
    """Deadline of one attempt. None: the source's."""

    requests_per_minute: int | None = Field(default=None, ge=1)
    """Maximum number of requests per minute of one scoring child."""

    cache: int = Field(default=4096, ge=0)
    """Answers that a scoring child keeps."""

    price_in: float = Field(default=0.0, ge=0)
    """Price of a million tokens of questions."""

    price_out: float = Field(default=0.0, ge=0)
    """Price of a million tokens of answers."""

    wait_s: float = Field(default=600.0, gt=0)
    """Seconds that a child waits for a judge of the run before the first question."""

    @property
    def most_attempts(self) -> float:
        """Maximum number of attempts of a question."""
        by_default = 8 if self.judge is None else math.inf
        return by_default if self.attempts is None else self.attempts

    @property
    def reads_words(self) -> bool:
        """True if the judge says yes or no."""
        return self.mode == "pairwise" or (self.mode == "pointwise" and self.reading == "yes_no")


def check_options(options: Options) -> None:
    """UserError where options do not go together."""
    if (options.url is None) == (options.judge is None):
        raise _wrong("url", "name either a url or a judge of the run")
    if options.url is not None:
        parts = urlsplit(options.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise _wrong("url", "write http://host:port/v1 or https://host/v1")
        if parts.username or parts.password or parts.query:
            text = "holds what may be a key: put it into a variable, named by api_key_env"
            raise _wrong("url", text)
        if options.model is None:
            raise _wrong("model", "name the model that the server at url is to ask")
    elif options.model is not None or options.api_key_env is not None:
        key = "model" if options.model is not None else "api_key_env"
        raise _wrong(key, "belongs to url, not to a judge of the run")
    if options.yes.strip().casefold() == options.no.strip().casefold():
        raise _wrong("no", "is the same word as yes")
    if options.images and options.api != "chat":
        raise _wrong("images", 'needs api = "chat"')
    if options.scale_min >= options.scale_max:
        raise _wrong("scale_max", "is not above scale_min")
    try:
        groups = re.compile(options.pattern).groupindex
    except re.error as error:
        raise _wrong("pattern", f"is no regular expression: {error}") from None
    if GROUP not in groups:
        raise _wrong("pattern", f"has no group (?P<{GROUP}>...)")


def _wrong(option: str, text: str) -> UserError:
    return UserError(f"option {option} of kind 'judge': {text}")
