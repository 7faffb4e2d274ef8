"""Which generators have room: always what looking at all of them would say."""

import random

import pytest

from coordinator.connections.peers import GeneratorCapacity, Peers
from headrace.protocol.messages.control import Hello


def hello(name: str, capacity: int) -> Hello:
    return Hello(role="generator", name=name, pid=1, host="a", capacity=capacity)


@pytest.mark.parametrize("seed", range(20))
def test_room_is_what_a_look_at_all_generators_says(seed: int) -> None:
    random_ = random.Random(seed)
    peers = Peers()
    for step in range(400):
        name = f"generator-{random_.randrange(5)}"
        generator = peers.generators.get(name)
        match random_.choice(["join", "leave", "take", "take", "release", "passed", "says"]):
            case "join":
                peers.join(hello(name, random_.randrange(4)), tested=random_.random() < 0.5)
            case "leave":
                peers.leave(name)
                if generator is not None:  # It is not heard of any more, whoever still knows it.
                    generator.add_lease(step)
            case "take" if generator is not None and generator.free:
                generator.add_lease(step)
            case "release" if generator is not None and generator.live:
                generator.drop_lease(min(generator.live))
            case "passed" if generator is not None:
                generator.passed()
            case "says" if generator is not None:
                generator.update_hello(hello(name, random_.randrange(4)))
        free = {name: one.free for name, one in peers.generators.items()}
        assert peers.room.total == sum(free.values())
        assert peers.room.any_idle == any(not one.live for one in peers.generators.values())
        if peers.room.total:
            assert free[peers.room.most()] == max(free.values())
        else:
            with pytest.raises(LookupError):
                peers.room.most()


def test_of_equals_the_one_that_has_had_room_longest_is_first() -> None:
    room = GeneratorCapacity()
    for name in ("a", "b", "c"):
        room.set(name, 2, idle=True)
    assert room.most() == "a"
    room.set("a", 1, idle=False)
    room.set("a", 2, idle=True)
    assert room.most() == "b"
    room.set("b", 2, idle=True)
    assert room.most() == "b"


def test_what_a_generator_says_of_its_room_costs_neither_time_nor_memory() -> None:
    room = GeneratorCapacity()
    for step in range(10_000):
        room.set("a", 2**62 - step, idle=True)
    assert len(room._names) == 1
    room.set("a", 0, idle=True)
    room.set("b", 1, idle=True)
    assert room.most() == "b"
