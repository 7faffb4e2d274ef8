"""The procedural task of walks: find the goal of a small directed graph, one step at a time.

In: an index and a seed. Out: prompts such as `;cb;AB;ba;cA;bc#a=c`, walks that a supervised model
is taught, and the score of a walk. All are pure functions of their arguments.

A prompt lists the edges in random order (`cb` leads from `c` to `b`), then the goal after `#` and
the start after `=`. An answer is the nodes that follow the start, one character per step: `bcba`.
It is right when every step is an edge and the last one reaches the goal.

Lower-case nodes are firm: the goal can be reached from each of them. Upper-case nodes are marsh: no
way leads back, and a walk that has entered wanders on until it is stuck at the one node without a
way out. So a single step decides a walk that fails, and it may lie anywhere: what came before it
was sound, and what follows, often the greater part, no longer matters. Every way on has a setback
beside it, so lengths are the hitting times of a search and not a property of the prompt: one
prompt gives walks of three steps and of two hundred. The terms of a prompt are its firm nodes.
"""

import re
import string
from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Literal

from tasks.procedural.base import Phase, ProceduralTask

FIRM = string.ascii_lowercase[:16]
MARSH = string.ascii_uppercase[:8]
FEWEST_NODES = 4
MARSH_NODES = 6
FATAL_SHARE = 0.3
"""Share of the firm nodes whose second edge leads into the marsh."""

LONGEST_LESSON = 239
"""Steps of the longest taught walk: with the end token it fits the response limit."""

Ending = Literal["goal", "stuck", "short", "illegal"]
Edge = tuple[str, str]

_PROMPT = re.compile(r"((?:;[a-pA-H]{2})+)#([a-p])=([a-p])")


@dataclass(frozen=True, slots=True)
class Graph:
    """The edges in the order in which they are written, the goal and the start."""

    edges: tuple[Edge, ...]
    goal: str
    start: str

    def successors(self) -> dict[str, list[str]]:
        """Targets of every node's edges; none for the goal and the node without a way out."""
        leads: dict[str, list[str]] = {node: [] for edge in self.edges for node in edge}
        for node, onward in self.edges:
            leads[node].append(onward)
        return leads


def draw_graph(rng: Random, nodes: int) -> Graph:
    """A graph of `nodes` firm nodes (four at least), the goal among them, and six of marsh.

    The goal is at least two steps from the start, and one node alone leads to it.
    """
    goal, *firm = rng.sample(FIRM, max(nodes, FEWEST_NODES))
    marsh = rng.sample(MARSH, MARSH_NODES)
    edges: list[Edge] = []
    for i, node in enumerate(firm):
        onward = rng.choice(firm[max(0, i - 2) : i]) if i else goal
        fatal = rng.random() < FATAL_SHARE
        other = rng.choice(marsh[1:]) if fatal else _setback(rng, firm, i, onward)
        edges += [(node, onward), (node, other)]
    for i, node in enumerate(marsh[1:], start=1):
        edges += [(node, marsh[i - 1]), (node, _setback(rng, marsh, i, marsh[i - 1]))]
    rng.shuffle(edges)
    return Graph(tuple(edges), goal, rng.choice(firm[1:]))


def _setback(rng: Random, nodes: list[str], i: int, onward: str) -> str:
    """A node further from the end of the walk than node `i`; for the last one any other."""
    behind = nodes[i + 1 :] or [node for node in nodes[:i] if node != onward]
    return rng.choice(behind)


def write_prompt(graph: Graph) -> str:
    """`;cb;AB;ba;cA;bc#a=c`: the edges, the goal, the start."""
    edges = "".join(f";{node}{onward}" for node, onward in graph.edges)
    return f"{edges}#{graph.goal}={graph.start}"


def read_prompt(prompt: str) -> Graph:
    """The graph of a prompt. Raises ValueError for any other text."""
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise ValueError(f"not a graph to walk: {prompt!r}")
    edges = tuple((pair[0], pair[1]) for pair in match[1].split(";")[1:])
    return Graph(edges, goal=match[2], start=match[3])


def shortest_walk(graph: Graph) -> str:
    """The shortest walk from start to goal. Raises ValueError when there is no way."""
    leads = graph.successors()
    walks = {graph.start: ""}
    waiting = deque([graph.start])
    while waiting:
        node = waiting.popleft()
        if node == graph.goal:
            return walks[node]
        for onward in leads[node]:
            if onward not in walks:
                walks[onward] = walks[node] + onward
                waiting.append(onward)
    raise ValueError(f"no way from {graph.start} to {graph.goal}")


def sample_walk(graph: Graph, rng: Random, *, max_steps: int) -> str:
    """A walk without foresight: every step is drawn evenly from the edges there are.

    It ends at the goal or where it is stuck. A walk of more than `max_steps` is drawn again.
    """
    leads = graph.successors()
    while True:
        walk, node = "", graph.start
        while node != graph.goal and leads[node] and len(walk) <= max_steps:
            node = rng.choice(leads[node])
            walk += node
        if len(walk) <= max_steps:
            return walk


def ending_of(graph: Graph, walk: str) -> Ending:
    """The end of a walk: at the goal, stuck, short of both, or at a step that is no edge.

    A walk that goes on after the goal is illegal: no edge leads on from it."""
    leads, node = graph.successors(), graph.start
    for onward in walk:
        if onward not in leads[node]:
            return "illegal"
        node = onward
    if node == graph.goal:
        return "goal"
    return "short" if leads[node] else "stuck"


def score(prompt: str, completion: str) -> dict[str, float]:
    """The reward function of the task: 1 for a walk to the goal, else 0.

    The parts: `legal`, every step is an edge; `lost`, the share of the walk from the step into the
    marsh on (0 for a walk that stays on firm ground). Raises ValueError for another prompt.
    """
    ending = ending_of(read_prompt(prompt), completion)
    lost = [i for i, node in enumerate(completion) if node in MARSH][:1]
    return {
        "score": float(ending == "goal"),
        "legal": float(ending != "illegal"),
        "lost": 1.0 - lost[0] / len(completion) if lost else 0.0,
    }


def teach(prompt: str, rng: Random, phase: Phase) -> str:
    """A walk without foresight, in both phases: the skill is to read the edges."""
    del phase
    return sample_walk(read_prompt(prompt), rng, max_steps=LONGEST_LESSON)


def style_of(response: str) -> str:
    """`lost` for a walk into the marsh, `firm` for one outside it, else `other`."""
    nodes = set(response)
    if not nodes or nodes - set(FIRM + MARSH):
        return "other"
    return "lost" if nodes & set(MARSH) else "firm"


GRAPH_WALK = ProceduralTask(
    name="graph_walk",
    characters=";#=" + FIRM + MARSH,
    most_terms=len(FIRM),
    min_terms=5,
    max_terms=16,
    styles=("lost", "firm"),
    draw=lambda rng, terms: write_prompt(draw_graph(rng, terms)),
    solve=lambda prompt: shortest_walk(read_prompt(prompt)),
    teach=teach,
    style_of=style_of,
    is_right=lambda row, walk: ending_of(read_prompt(str(row.prompt)), walk) == "goal",
)
