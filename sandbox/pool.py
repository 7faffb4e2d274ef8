"""The sandbox: runs programs in cells that are ready before they are needed.

In: programs, any number at a time. Out: one result each. At most `parallel` run at once; the next
cells are created meanwhile, for one use each. `open` raises a UserError where no layer holds.
"""

import asyncio
import contextlib
import os
from collections import deque
from typing import Self

from headrace.errors import RunFailedError
from sandbox.cell import Cell
from sandbox.interpreter import Interpreter
from sandbox.isolation.factory_client import CellFactoryClient
from sandbox.isolation_check import working_layer
from sandbox.limits import Limits, Program, ProgramResult


class Sandbox:
    """Cells of one layer with the same limits. `async with Sandbox() as sandbox: ...`"""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        parallel: int | None = None,
        layer: str | None = None,
        python: Interpreter | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.parallel = parallel or len(os.sched_getaffinity(0))
        self.layer = layer
        """The layer it was given, or from `open` on the one that works here."""
        self._python = python
        self._free = asyncio.Semaphore(self.parallel)
        self._factory: CellFactoryClient | None = None
        self._starting = asyncio.Lock()
        self._next: deque[asyncio.Task[Cell]] = deque()

    async def open(self) -> Self:
        """Find a layer and begin to make cells; UserError where there is none."""
        if self.layer is None:
            self.layer = await working_layer(self._python)
        while len(self._next) < self.parallel:
            self._make_one()
        return self

    async def run(self, program: Program) -> ProgramResult:
        """Run a program; its deadline begins when a cell is ready for it."""
        async with self._free:
            while True:
                self._make_one()
                cell = await self._next.popleft()
                if not cell.gone:
                    return await cell.run(program)
                await cell.close()

    async def close(self) -> None:
        """Take the waiting cells down."""
        while self._next:
            making = self._next.popleft()
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError, RunFailedError):
                await (await making).close()
        if self._factory is not None:
            await self._factory.close()
            self._factory = None

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _make_one(self) -> None:
        assert self.layer is not None, "the sandbox is not open"
        self._next.append(asyncio.create_task(self._ready_cell(self.layer)))

    async def _ready_cell(self, layer: str) -> Cell:
        """Create a cell, again if its factory ended meanwhile."""
        factory = await self._working_factory()
        try:
            return await Cell.make(factory, layer, self.limits)
        except RunFailedError:
            if factory.works:
                raise
        return await Cell.make(await self._working_factory(), layer, self.limits)

    async def _working_factory(self) -> CellFactoryClient:
        async with self._starting:
            if self._factory is not None and not self._factory.works:
                gone, self._factory = self._factory, None
                await gone.close()
            if self._factory is None:
                self._factory = await CellFactoryClient.start(self._python)
            return self._factory
