"""A world of search sessions that is made, not read: topics, their words, ambiguous queries.

In: sizes, a seed. Out: sessions of one topic each, and lists of candidates for an ambiguous last
query, of which the one of the session's topic was clicked; and the procedural task of rewriting
such a query, whose prompts are sessions (`Aa Ac>Ab Ac Ad Aa;Xb=`). Promises: the same seeds give
the same sessions; nothing but the session says which candidate is right. The world itself is the
same for every seed, as a language is.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from headrace.data.sessions import Pair, RankedList, SessionData
from tasks.procedural.base import Phase, ProceduralTask
from tasks.rows import TaskRow

TOPICS, WORDS, SHARED = 20, 15, 20
"""Topics, words of each, and ambiguous words, each of which three topics share."""
NOISE = 0.15
"""Share of words that another topic lends."""
CANDIDATES = 10
AMBIGUOUS = "X"
"""The first letter of ambiguous words."""
_CHANCES = [1 / (rank + 1) for rank in range(WORDS)]
_WORLD = Random(0)
_MEANINGS = [_WORLD.sample(range(TOPICS), 3) for _ in range(SHARED)]
_TOPICS = [t for t in range(TOPICS) if any(t in meant for meant in _MEANINGS)]
QUERY, ANY = 0.5, 0.3
"""Shares of the taught rewritings that repeat the query, and that are any words."""
LONGEST = 6
"""Maximum number of words of a shown rewriting."""


def vocabulary() -> list[str]:
    """Every word: a letter of its topic and one of its rank."""
    own = [_word(topic, rank) for topic in range(TOPICS) for rank in range(WORDS)]
    return own + [_shared(number) for number in range(SHARED)]


def session(draw: Random) -> tuple[Pair, ...]:
    """Two to four queries of one topic, each with a click."""
    return _pairs(draw, draw.choice(_TOPICS), draw.randint(2, 4))


def ranked_list(draw: Random) -> RankedList:
    """A session whose last query could mean three topics, and candidates."""
    topic, number = _topic_and_query(draw)
    history = _pairs(draw, topic, draw.randint(1, 3))
    return _listed(draw, history, number, topic)


def search_data(*, sessions: int, lists: int, held_out: int, seed: int) -> SessionData:
    """Sessions and lists of the world by a seed; the held-out ones are always the same."""
    draw = Random(seed)
    return SessionData(
        [session(draw) for _ in range(sessions)],
        [ranked_list(draw) for _ in range(lists)],
        [ranked_list(Random(10_000 + i)) for i in range(held_out)],
        {},
    )


def _topic_and_query(draw: Random) -> tuple[int, int]:
    topic = draw.choice(_TOPICS)
    return topic, draw.choice([i for i, meant in enumerate(_MEANINGS) if topic in meant])


def _listed(draw: Random, history: Sequence[Pair], number: int, topic: int) -> RankedList:
    """Ten candidates, of which two are of the query's other meanings."""
    meant = _MEANINGS[number]
    rest = draw.sample([t for t in range(TOPICS) if t not in meant], CANDIDATES - 3)
    others = [t for t in meant if t != topic]
    told = [(_text(draw, t, 4, 7), int(t == topic)) for t in (topic, *others, *rest)]
    draw.shuffle(told)
    candidates, labels = zip(*told, strict=True)
    return RankedList(tuple(history), _shared(number), candidates, labels)


def _pairs(draw: Random, topic: int, count: int) -> tuple[Pair, ...]:
    return tuple((_text(draw, topic, 1, 3), _text(draw, topic, 4, 7)) for _ in range(count))


def _text(draw: Random, topic: int, fewest: int, most: int) -> str:
    ranks = draw.choices(range(WORDS), _CHANCES, k=draw.randint(fewest, most))
    whose = [draw.randrange(TOPICS) if draw.random() < NOISE else topic for _ in ranks]
    return " ".join(_word(t, rank) for t, rank in zip(whose, ranks, strict=True))


def _word(topic: int, rank: int) -> str:
    return ascii_uppercase[topic] + ascii_lowercase[rank]


def _shared(number: int) -> str:
    return AMBIGUOUS + ascii_lowercase[number]


# -- rewriting ------------------------------------------------------------------------------------


def draw_rewriting(rng: Random, terms: int) -> str:
    """A session of `terms` pairs, and an ambiguous query, one of whose meanings prevails."""
    while True:
        topic, number = _topic_and_query(rng)
        told = "".join(f"{query}>{document};" for query, document in _pairs(rng, topic, terms))
        prompt = f"{told}{_shared(number)}="
        if topic_of(prompt) == topic:
            return prompt


def read_prompt(prompt: str) -> tuple[list[Pair], str]:
    """History and query. Raises ValueError for another text."""
    *parts, query = prompt.removesuffix("=").split(";")
    if not prompt.endswith("=") or query[:1] != AMBIGUOUS:
        raise ValueError(f"no session with an ambiguous query: {prompt!r}")
    pairs = [part.split(">") for part in parts]
    return [(asked, clicked) for asked, clicked in pairs], query


def topic_of(prompt: str) -> int:
    """The one of the query's meanings that has most words in the session."""
    history, query = read_prompt(prompt)
    seen = Counter(word[0] for pair in history for text in pair for word in text.split())
    meant = _MEANINGS[ascii_lowercase.index(query[1])]
    return max(meant, key=lambda topic: seen[ascii_uppercase[topic]])


def columns(prompt: str) -> dict[str, Any]:
    """History, query, candidates and labels of a prompt, the same ones every time."""
    history, query = read_prompt(prompt)
    number = ascii_lowercase.index(query[1])
    found = _listed(Random(f"candidates/{prompt}"), history, number, topic_of(prompt))
    return {
        "history": [{"query": query, "clicked": clicked} for query, clicked in found.history],
        "query": found.query,
        "candidates": list(found.candidates), "labels": list(found.labels),
    }  # fmt: skip


def _solve(prompt: str) -> str:
    """The candidate that was clicked."""
    found = columns(prompt)
    return found["candidates"][found["labels"].index(1)]


def _teach(prompt: str, rng: Random, phase: Phase) -> str:
    """Words of the session while copying is learnt; then mostly the query, or any words."""
    history, query = read_prompt(prompt)
    kind, count = rng.random(), rng.randint(1, LONGEST)
    if phase == "mixture" and kind < QUERY:
        return query
    if phase == "mixture" and kind < QUERY + ANY:
        chosen = [_word(rng.randrange(TOPICS), rng.randrange(WORDS)) for _ in range(count)]
    else:
        words = [word for pair in history for text in pair for word in text.split()]
        first = rng.randrange(len(words))
        chosen = words[first : first + count]
    return " ".join(chosen)


def _style_of(response: str) -> str:
    """`query` where the query was repeated, `words` for words of topics, else `other`."""
    if response[:1] == AMBIGUOUS:
        return "query"
    return "words" if response[:1] in ascii_uppercase[:TOPICS] else "other"


def _is_right(row: TaskRow, response: str) -> bool:
    """Return whether most words are of the topic that was meant."""
    words = response.split()
    meant = ascii_uppercase[topic_of(str(row.prompt))]
    return 2 * sum(word[0] == meant for word in words) > len(words)


REWRITING = ProceduralTask(
    name="rewriting",
    characters=ascii_uppercase[:TOPICS] + AMBIGUOUS + ascii_lowercase[:SHARED] + " >;=",
    most_terms=4,
    max_terms=3,
    styles=("query", "words"),
    draw=draw_rewriting,
    solve=_solve,
    teach=_teach,
    style_of=_style_of,
    is_right=_is_right,
    min_terms=2,
    columns=columns,
)
