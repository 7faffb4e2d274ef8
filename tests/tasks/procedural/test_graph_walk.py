"""The task of walks: golden texts, graphs that keep their promises, and the score."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.procedural.base import evaluation_rows, is_held_out, prompt_row
from tasks.procedural.graph_walk import (
    GRAPH_WALK,
    MARSH,
    Graph,
    draw_graph,
    ending_of,
    read_prompt,
    sample_walk,
    score,
    shortest_walk,
    style_of,
    write_prompt,
)

PROMPT = ";cb;AB;ba;cA;bc#a=c"

graphs = st.builds(
    lambda seed, nodes: draw_graph(Random(seed), nodes),
    st.integers(0, 2**32),
    st.integers(1, GRAPH_WALK.most_terms),
)


def test_the_example() -> None:
    graph = read_prompt(PROMPT)
    assert graph.goal == "a"
    assert graph.start == "c"
    assert graph.successors() == {"a": [], "b": ["a", "c"], "c": ["b", "A"], "A": ["B"], "B": []}
    assert write_prompt(graph) == PROMPT
    assert shortest_walk(graph) == "ba"


@given(graphs)
def test_a_prompt_reads_back(graph: Graph) -> None:
    assert read_prompt(write_prompt(graph)) == graph


@pytest.mark.parametrize(
    "text", ["", "#a=c", ";cb#a=", "cb;ba#a=c", ";c1#a=c", ";cb#A=c", PROMPT + "b"]
)
def test_other_texts_are_not_prompts(text: str) -> None:
    with pytest.raises(ValueError, match="not a graph"):
        read_prompt(text)


@given(graphs)
def test_the_goal_is_reached_from_firm_ground_and_never_from_the_marsh(graph: Graph) -> None:
    for node in graph.successors():
        start_here = Graph(graph.edges, graph.goal, node)
        if node in MARSH:
            with pytest.raises(ValueError, match="no way"):
                shortest_walk(start_here)
        else:
            walk = shortest_walk(start_here)
            assert ending_of(start_here, walk) == "goal"
            assert not set(walk) & set(MARSH)
    assert len(shortest_walk(graph)) >= 2


@given(graphs)
def test_every_node_has_two_ways_on_but_the_goal_and_one_of_marsh(graph: Graph) -> None:
    leads = graph.successors()
    ends = [node for node, onward in leads.items() if not onward]
    assert graph.goal in ends
    assert len(ends) == 2
    assert {len(onward) for node, onward in leads.items() if node not in ends} == {2}
    assert all(
        len(set(onward)) == len(onward) and node not in onward for node, onward in leads.items()
    )
    assert sum(onward.count(graph.goal) for onward in leads.values()) == 1


@given(graphs, st.integers(0, 2**32))
def test_a_sampled_walk_is_legal_and_ends_at_the_goal_or_stuck(graph: Graph, seed: int) -> None:
    walk = sample_walk(graph, Random(seed), max_steps=400)
    ending = ending_of(graph, walk)
    assert ending in ("goal", "stuck")
    judged = score(write_prompt(graph), walk)
    assert judged["legal"] == 1.0
    assert judged["score"] == float(ending == "goal")
    assert (judged["lost"] > 0.0) == (ending == "stuck")


def test_no_sampled_walk_is_longer_than_asked() -> None:
    graph = draw_graph(Random(0), 16)
    assert max(len(sample_walk(graph, Random(i), max_steps=12)) for i in range(200)) == 12


@pytest.mark.parametrize(
    ("walk", "ending", "lost"),
    [
        ("ba", "goal", 0.0),
        ("bcba", "goal", 0.0),
        ("", "short", 0.0),
        ("bcb", "short", 0.0),
        ("bcA", "short", 1 / 3),
        ("AB", "stuck", 1.0),
        ("a", "illegal", 0.0),
        ("bab", "illegal", 0.0),
        ("ba#", "illegal", 0.0),
        ("bAB;", "illegal", 3 / 4),
    ],
)
def test_the_ending_of_a_walk_decides_its_score(walk: str, ending: str, lost: float) -> None:
    assert ending_of(read_prompt(PROMPT), walk) == ending
    assert score(PROMPT, walk) == {
        "score": float(ending == "goal"),
        "legal": float(ending != "illegal"),
        "lost": pytest.approx(lost),
    }


def test_a_score_without_a_graph_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a graph"):
        score("a3b5=", "#8")


def test_rows_are_split_by_hash_and_their_answers_are_right() -> None:
    rows = [prompt_row(GRAPH_WALK, i, 3) for i in range(300)]
    held_out = evaluation_rows(GRAPH_WALK, 300)
    assert not any(is_held_out(str(row.prompt)) for row in rows)
    assert all(is_held_out(str(row.prompt)) for row in held_out)
    for row in rows + held_out:
        assert GRAPH_WALK.is_right(row, row.answer)
        assert not GRAPH_WALK.is_right(row, row.answer[:-1])
        firm = {node for node in read_prompt(str(row.prompt)).successors() if node not in MARSH}
        assert len(firm) == row.info["terms"]


def test_lessons_are_legal_and_of_two_styles() -> None:
    rng = Random(0)
    prompts = [str(prompt_row(GRAPH_WALK, i, 0).prompt) for i in range(300)]
    lessons = [(prompt, GRAPH_WALK.teach(prompt, rng, "mixture")) for prompt in prompts]
    styles = [style_of(walk) for _, walk in lessons]
    assert set(styles) == {"firm", "lost"}
    for (prompt, walk), style in zip(lessons, styles, strict=True):
        assert score(prompt, walk)["score"] == float(style == "firm")


@pytest.mark.parametrize("text", ["", "ab#", "a;", "1", "=A"])
def test_other_answers_have_no_style(text: str) -> None:
    assert style_of(text) == "other"


def test_blind_walks_mostly_fail_and_have_a_long_tail() -> None:
    graphs = [read_prompt(str(prompt_row(GRAPH_WALK, i, 0).prompt)) for i in range(2000)]
    walks = [sample_walk(graph, Random(i), max_steps=239) for i, graph in enumerate(graphs)]
    endings = [ending_of(graph, walk) for graph, walk in zip(graphs, walks, strict=True)]
    assert 0.3 <= endings.count("goal") / len(walks) <= 0.42
    mean = sum(map(len, walks)) / len(walks)
    assert 13 <= mean <= 19
    assert max(map(len, walks)) >= 8 * mean


def test_a_walk_that_keeps_out_of_the_marsh_arrives_but_after_a_search() -> None:
    rng = Random(0)
    lengths: list[int] = []
    for i in range(1000):
        graph = read_prompt(str(prompt_row(GRAPH_WALK, i, 0).prompt))
        leads, node, steps = graph.successors(), graph.start, 0
        while node != graph.goal and steps < 239:
            firm = [onward for onward in leads[node] if onward not in MARSH]
            node = graph.goal if graph.goal in firm else rng.choice(firm)
            steps += 1
        lengths.append(steps)
    assert sum(steps < 239 for steps in lengths) >= 960
    assert 14 <= sum(lengths) / 1000 <= 26
    assert sum(steps > 100 for steps in lengths) >= 20
