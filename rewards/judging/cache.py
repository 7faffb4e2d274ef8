"""Answers that were given before, by the content of the question.

In: questions as they go to the server. Out: the reply, where the same question was answered. Holds
at most `most` replies; the one that was longest not asked for goes first.
"""

import hashlib
from collections import OrderedDict

from rewards.judging.readings import Reply


class Cache:
    """The last replies."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._replies: OrderedDict[bytes, Reply] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def find(self, question: bytes) -> Reply | None:
        """The reply to the same question."""
        key = _key(question)
        reply = self._replies.get(key)
        if reply is not None:
            self._replies.move_to_end(key)
        return reply

    def keep(self, question: bytes, reply: Reply) -> None:
        """Remember a reply."""
        self._replies[_key(question)] = reply
        while len(self._replies) > self._most:
            self._replies.popitem(last=False)


def _key(question: bytes) -> bytes:
    return hashlib.sha256(question).digest()
