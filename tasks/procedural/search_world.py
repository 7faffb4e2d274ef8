"""A world of search sessions that is made, not read: topics, their words, ambiguous queries.

In: sizes, a seed. Out: sessions of one topic each, and lists of candidates for an ambiguous last
query, of which the one of the session's topic was clicked. Promises: the same seeds give the same
sessions; nothing but the session says which candidate is right. The world itself is the same for
every seed, as a language is.
"""

from random import Random

from headrace.data.sessions import Pair, RankedList, SessionData

NOISE = 0.15
"""Share of words that another topic lends."""
CANDIDATES = 10


class SearchWorld:
    """`topics` of `words` each, by Zipf's law, and `ambiguous` words that three topics share."""

    def __init__(self, topics: int = 20, words: int = 15, ambiguous: int = 20) -> None:
        draw = Random(0)
        self._topics, self._words = topics, words
        self._shared = [draw.sample(range(topics), 3) for _ in range(ambiguous)]
        self._chances = [1 / (rank + 1) for rank in range(words)]
        self._able = [t for t in range(topics) if any(t in shared for shared in self._shared)]

    @property
    def vocabulary(self) -> list[str]:
        """Every word."""
        own = [f"t{t}w{w}" for t in range(self._topics) for w in range(self._words)]
        return own + [f"both{i}" for i in range(len(self._shared))]

    def session(self, draw: Random) -> tuple[Pair, ...]:
        """Two to four queries of one topic, each with a click."""
        topic = draw.choice(self._able)
        return tuple(
            (self._text(draw, topic, 1, 3), self._text(draw, topic, 4, 7))
            for _ in range(draw.randint(2, 4))
        )

    def ranked_list(self, draw: Random) -> RankedList:
        """A session whose last query could mean three topics; ten candidates, two of them of the
        other meanings."""
        topic = draw.choice(self._able)
        number = draw.choice([i for i, shared in enumerate(self._shared) if topic in shared])
        history = tuple(
            (self._text(draw, topic, 1, 3), self._text(draw, topic, 4, 7))
            for _ in range(draw.randint(1, 3))
        )
        meant = self._shared[number]
        others = [t for t in meant if t != topic]
        rest = draw.sample([t for t in range(self._topics) if t not in meant], CANDIDATES - 3)
        told = [(self._text(draw, t, 4, 7), int(t == topic)) for t in (topic, *others, *rest)]
        draw.shuffle(told)
        candidates, labels = zip(*told, strict=True)
        return RankedList(history, f"both{number}", candidates, labels)

    def _text(self, draw: Random, topic: int, fewest: int, most: int) -> str:
        ranks = draw.choices(range(self._words), self._chances, k=draw.randint(fewest, most))
        whose = [draw.randrange(self._topics) if draw.random() < NOISE else topic for _ in ranks]
        return " ".join(f"t{t}w{rank}" for t, rank in zip(whose, ranks, strict=True))


def search_data(*, sessions: int, lists: int, held_out: int, seed: int) -> SessionData:
    """Sessions and lists of the world by a seed; what is held out is the same for every seed."""
    world, draw = SearchWorld(), Random(seed)
    return SessionData(
        [world.session(draw) for _ in range(sessions)],
        [world.ranked_list(draw) for _ in range(lists)],
        [world.ranked_list(Random(10_000 + i)) for i in range(held_out)],
        {},
    )
