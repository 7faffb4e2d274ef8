"""Messages about weights: that they can be had, their bytes, and that they are loaded.

They are among those of `messages`, which names all that are on the wire.
"""

from headrace.protocol import fields
from headrace.protocol.message import Message


class WeightNotice(Message, frozen=True, kw_only=True, tag=True):
    """Weights `version` can be had: learner to coordinator to generators. `sources` are tried in
    order: `file:/path.safetensors` (same host) or `tcp://host:port` (the learner's own ROUTER)."""

    version: fields.Count
    update: fields.Count
    sha256: fields.Digest
    num_bytes: fields.Count
    sources: list[fields.Line]


class WeightsLoaded(Message, frozen=True, kw_only=True, tag=True):
    """Generator to coordinator: `version` samples from now on; how long requests stood still."""

    version: fields.Count
    gap_s: fields.Seconds
    load_s: fields.Seconds
    error: fields.Prose | None = None


class WeightRequest(Message, frozen=True, kw_only=True, tag=True):
    """Generator to the learner's weight ROUTER: send `version` from byte `offset`."""

    version: fields.Count
    offset: fields.Count


class WeightBytes(Message, frozen=True, kw_only=True, tag=True):
    """Answer: a piece of the safetensors file; an empty piece says the version is gone."""

    version: int
    offset: int
    data: bytes
