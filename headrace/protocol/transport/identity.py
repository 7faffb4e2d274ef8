"""The identity of a process's sockets towards the coordinator: NAME~SECRET.

Comes in: a process's name. Goes out: an identity that no other process can guess, made anew for
each process. Promises: only the process that made an identity can speak under it, so the
coordinator can tell a process from another one that merely uses the same name.
"""

import re
import secrets

from headrace.errors import UserError
from headrace.protocol.fields import NAME

_MARK = "~"
PULSE_SUFFIX = "#pulse"
"""Of the identity of the socket from which a process sends heartbeats."""


def identity_of(name: str) -> str:
    """An identity for the sockets of one process. UserError where the coordinator would not take
    the name."""
    if not re.match(NAME, name):
        raise UserError(
            f"{name!r} cannot be the name of a process: letters, digits, '.', '_' and '-' can, "
            "64 at most"
        )
    return f"{name}{_MARK}{secrets.token_hex(8)}"


def name_of(identity: str) -> str | None:
    """The name in an identity, or None where the identity has no secret."""
    name, _, secret = identity.partition(_MARK)
    return name if secret else None
