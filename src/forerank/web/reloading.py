"""Serve the newest state of an index: a rebuilt index is loaded without a restart."""

import asyncio
import contextlib
import gc
from typing import Any

import numpy as np

from forerank.report import derivative
from forerank.search.index import Index
from forerank.web.app import create_app
from forerank.web.observe import LOG
from forerank.web.resources import Resources
from forerank.web.settings import Settings

LOOK_SECONDS = 2.0


class _State:
    """One state of the index, its application, and how many requests it is answering."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.index: Index = app.state.index
        self.requests = 0


class Reloading:
    """ASGI application. Requests finish on the state of the index that they began with.

    When the last of them is answered, an older state is closed and its memory is free. Everything here runs
    in the event loop, so nothing is locked.
    """

    def __init__(self, index: Index, look_seconds: float = LOOK_SECONDS, **options: Any) -> None:
        self._options, self._look_seconds = options, look_seconds
        self._resources = Resources(Settings(**options).limits)
        self._seen = index.engine.state()
        self._current = self._state_of(index)
        self._refreshing = asyncio.Lock()

    def _state_of(self, index: Index) -> _State:
        resources = self._resources
        return _State(create_app(index, resources=resources, refresh=self.refresh, **self._options))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        state = self._current
        state.requests += 1
        try:
            await state.app(scope, receive, send)
        finally:
            state.requests -= 1
            self._close_if_old(state)

    async def refresh(self) -> Index:
        """Load the newest state of the index, if there is a newer one; returns the state in use."""
        async with self._refreshing:
            seen = await asyncio.to_thread(self._current.index.engine.state)
            if seen and seen != self._seen:
                self._seen = seen  # also where it is damaged: it is tried again when it has changed again
                index = await asyncio.to_thread(self._open)
                old, self._current = self._current, self._state_of(index)
                self._resources.measurements.reloads.inc()
                LOG.info(f"the index has changed: {len(index):,} images from now on")
                self._close_if_old(old)
            return self._current.index

    def _open(self) -> Index:
        index = self._current.index.reopened()
        self._warm_up(index)  # before it is in use: nobody waits for a model
        return index

    def _warm_up(self, index: Index) -> None:
        with self._resources.model_in_use:
            index.retriever.embed([np.zeros((32, 32), np.uint8)], progress=False)

    def warm_up(self) -> None:
        """Load the model and the losses before a visitor needs them; an error is reported when it matters."""
        with contextlib.suppress(Exception):
            self._warm_up(self._current.index)
            derivative()

    def _close_if_old(self, state: _State) -> None:
        if state is not self._current and not state.requests:
            state.index.close()
            gc.collect()  # an application holds itself in a circle

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self.refresh()
            except Exception as error:  # whatever it is, the old state goes on answering
                LOG.warning(f"the newer state of the index cannot be loaded, the old one stays: {error}")

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()  # lifespan.startup
        looking = asyncio.create_task(self._look())
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
        looking.cancel()
        self._resources.close()
        await send({"type": "lifespan.shutdown.complete"})
