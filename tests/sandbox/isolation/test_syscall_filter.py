"""The filter, read the way the kernel reads it."""

import struct

import pytest

from sandbox.isolation import kernel
from sandbox.isolation.syscall_filter import REFUSED, REFUSED_TO_ONE, UNKNOWN_FROM, instructions

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
MACHINES = list(kernel.ARCHITECTURES)
WRITE = {"x86_64": 1, "aarch64": 64}
CLONE, FCNTL = {"x86_64": 56, "aarch64": 220}, {"x86_64": 72, "aarch64": 25}
IOCTL, MADVISE = {"x86_64": 16, "aarch64": 29}, {"x86_64": 28, "aarch64": 233}
SETSOCKOPT, GETSOCKOPT = {"x86_64": 54, "aarch64": 208}, {"x86_64": 55, "aarch64": 209}
SENDTO, SENDMSG = {"x86_64": 44, "aarch64": 206}, {"x86_64": 46, "aarch64": 211}
PRCTL = {"x86_64": 157, "aarch64": 167}
SOCKETPAIR, PRLIMIT = {"x86_64": 53, "aarch64": 199}, {"x86_64": 302, "aarch64": 261}


def verdict(
    machine: str, number: int, *arguments: int, single: bool = False, architecture: int = 0
) -> int:
    """What the filter returns for a call."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<iIQ6Q", number, architecture or kernel.ARCHITECTURES[machine], 0, *given)
    steps = list(struct.iter_unpack("<HBBI", instructions(machine, single=single)))
    position = value = 0
    while True:
        code, yes, no, operand = steps[position]
        position += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                value &= operand
            case 0x06:
                return operand
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: value & operand}
                position += yes if holds[code] else no
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_listed_is_refused_and_the_rest_is_not(machine: str) -> None:
    column = MACHINES.index(machine)
    for name, numbers in REFUSED.items():
        if (number := numbers[column]) is not None:
            assert verdict(machine, number, 1) == EPERM, name
    for name, numbers in REFUSED_TO_ONE.items():
        if (number := numbers[column]) is not None:
            assert verdict(machine, number, 17) == ALLOW, name
            assert verdict(machine, number, 17, single=True) == EPERM, name
    for single in (False, True):
        assert verdict(machine, WRITE[machine], 1, 2, 3, single=single) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_new_calls_are_unknown_and_foreign_conventions_end_the_process(machine: str) -> None:
    assert verdict(machine, UNKNOWN_FROM) == ENOSYS
    assert verdict(machine, 0x40000000 | 41) == ENOSYS
    assert verdict(machine, 435) == ENOSYS
    assert verdict(machine, WRITE[machine], architecture=0x40000003) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_some_calls_are_judged_by_their_arguments(machine: str) -> None:
    assert verdict(machine, CLONE[machine], 17) == ALLOW
    for flag in (0x10000000, 0x20000, 0x40000000 | 17):
        assert verdict(machine, CLONE[machine], flag) == EPERM
    assert verdict(machine, SOCKETPAIR[machine], 1, 0x80001) == ALLOW
    assert verdict(machine, SOCKETPAIR[machine], 1, 2) == EPERM
    assert verdict(machine, PRLIMIT[machine], 0, 7) == ALLOW
    assert verdict(machine, PRLIMIT[machine], 4242, 7) == EPERM
    assert verdict(machine, FCNTL[machine], 3, 3) == ALLOW
    assert verdict(machine, FCNTL[machine], 3, 8) == EPERM
    for calls, allowed, refused in (
        (FCNTL, (3, 6), (3, 1024)), (FCNTL, (3, 1031), (3, 1026)), (PRCTL, (15,), (22,)),
        (IOCTL, (0, 0x5401), (0, 0x5412)), (IOCTL, (0, 0x541B), (0, 0x8901)),
        (IOCTL, (0, 0x18912), (0, 0x8912)), (IOCTL, (0, 0x8A00), (0, 0x89FF)),
        (SETSOCKOPT, (3, 1, 16), (3, 1, 26)), (SETSOCKOPT, (3, 1, 2), (3, 1, 7)),
        (GETSOCKOPT, (3, 1, 7), (3, 1, 77)), (MADVISE, (0, 1, 4), (0, 1, 12)),
        (SENDTO, (3, 0, 1, 0x4000), (3, 0, 1, 0x4001)), (SENDMSG, (3, 0, 0x4000), (3, 0, 1)),
    ):  # fmt: skip
        assert verdict(machine, calls[machine], *allowed) == ALLOW, allowed
        assert verdict(machine, calls[machine], *refused) == EPERM, refused


def test_jumps_stay_within_the_filter() -> None:
    for machine in MACHINES:
        for single in (False, True):
            steps = list(struct.iter_unpack("<HBBI", instructions(machine, single=single)))
            assert len(steps) < 4096
            for position, (_, yes, no, _) in enumerate(steps):
                assert position + 1 + max(yes, no) < len(steps) + 1
            assert steps[-1][0] == 0x06
