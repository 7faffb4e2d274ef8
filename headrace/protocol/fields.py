"""The types of message fields, with the values that each may have.

In: nothing. Out: annotated types for messages. Promises: a decoder refuses a value
outside its type's bounds, so that whatever is decoded fits a journal column, a 64-bit SQL column
and a float. The bounds hold where a message is decoded, not where it is made.
"""

from typing import Annotated

from msgspec import Meta

MAX_COUNT = 2**53 - 1
"""The largest count: a float still holds it exactly, and so does every database."""
MAX_PROSE_CHARACTERS = 2**20
"""Characters of an error text that may be sent; the coordinator keeps far fewer."""

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
"""A number of tokens or bytes, an id, an update, a weight version."""
LoadedVersion = Annotated[int, Meta(ge=-1, le=MAX_COUNT)]
"""A weight version, or -1 where no weights are loaded."""
LeaseBorder = Annotated[int, Meta(ge=-1, le=MAX_COUNT)]
"""Leases with lower ids, or -1 before any."""
WindowId = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A trajectory's id and a window's index in one number."""
Position = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A token position, a chunk's index, or a number of trajectories: a 32-bit column holds it."""
Pid = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""A process id."""
MAX_ACTS = 4
"""Kinds of turns that advantages are normalised by."""
Act = Annotated[int, Meta(ge=0, le=MAX_ACTS - 1)]
"""The kind of a turn, by number."""
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]
"""A duration: finite and not negative."""
NAME = r"^[A-Za-z0-9._-]{1,64}\Z"
Name = Annotated[str, Meta(pattern=NAME)]
"""A process's name."""
Host = Annotated[str, Meta(max_length=255, pattern=r"^[^\x00-\x1f]*\Z")]
"""A machine's name."""
Label = Annotated[str, Meta(pattern=r"^[^\x00-\x1f]{1,128}\Z")]
"""The name of a metric or a gauge."""
Line = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00-\x1f]*\Z")]
"""A path or an address."""
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}\Z")]
"""A SHA-256 in hexadecimal; empty where there is no file."""
Prose = Annotated[str, Meta(max_length=MAX_PROSE_CHARACTERS)]
"""An error text."""
Metric = float | list[float | None]
"""A figure, or one per bin of `headrace.metrics.registry`; None: an empty bin."""
Metrics = Annotated[dict[Label, Metric], Meta(max_length=4096)]
"""Metrics by name; NaN and infinities are numbers here, and SQL holds null for them."""
