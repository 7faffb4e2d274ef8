"""Errors across module borders."""

import asyncio

import pytest

from headrace.errors import RunFailedError, UserError, first_error


async def _fails(error: Exception) -> None:
    raise error


async def _fail(*errors: Exception) -> None:
    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(_fails(error))


@pytest.mark.parametrize("nested", [False, True])
async def test_the_first_error_of_a_task_group_is_raised_by_itself(nested: bool) -> None:
    error: Exception = UserError("mine")
    if nested:
        error = ExceptionGroup("of a task", [error])
    with pytest.raises(UserError, match="mine") as seen, first_error(UserError, RunFailedError):
        await _fail(error)
    assert seen.value.__suppress_context__


async def test_errors_of_other_kinds_stay_in_their_group() -> None:
    with pytest.raises(ExceptionGroup) as seen, first_error(UserError):
        await _fail(UserError("mine"), KeyError("ours"))
    assert {type(error) for error in seen.value.exceptions} == {UserError, KeyError}


async def test_an_error_outside_a_group_passes() -> None:
    with pytest.raises(KeyError), first_error(UserError):
        raise KeyError
