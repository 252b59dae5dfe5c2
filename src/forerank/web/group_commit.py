"""Images that are added at the same time are written together: a write of the index is the costly part."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from forerank.search.add import NewImage, add_images
from forerank.search.index import Index


@dataclass
class Adding:
    """Images that wait to be written; those that come while others are written are written together."""

    waiting: list[tuple[NewImage, asyncio.Future[Index]]] = field(default_factory=list)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def add(self, image: NewImage, index: Index, refresh: Callable[[], Awaitable[Index]]) -> Index:
        """Write an image durably; the state of the index that has it."""
        done: asyncio.Future[Index] = asyncio.get_running_loop().create_future()
        self.waiting.append((image, done))
        async with self.writing:
            batch, self.waiting = self.waiting, []
            try:
                if batch:
                    await asyncio.to_thread(add_images, index, [image for image, _ in batch])
                    newest = await refresh()
                    for _, waiter in batch:
                        waiter.set_result(newest)
            except Exception as error:
                for _, waiter in batch:
                    waiter.set_exception(error)
        return await done
