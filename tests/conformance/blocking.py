"""penstock.aio behind the blocking contract, for the same tests: each call runs in an event loop in a thread."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

import penstock
import penstock.aio
from penstock.aio import Opening


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        if self._loop.is_closed():  # and with it the store, which should say so
            return asyncio.run(_result(awaitable))
        return asyncio.run_coroutine_threadsafe(_result(awaitable), self._loop).result()

    def stop(self) -> None:
        self.run(_finished_tasks())  # else callers of a store that was closed meanwhile would wait for ever
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _finished_tasks() -> None:
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


class Blocking:
    """An object of penstock.aio whose methods block until they have a result."""

    def __init__(self, loop: Loop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if isinstance(value, penstock.aio.Store):
            return Blocking(self._loop, value)
        return self._method(value) if callable(value) else value

    def __repr__(self) -> str:
        return repr(self._target).replace("penstock.aio.", "penstock.")

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            return self._blocking(self._loop.run(result) if inspect.isawaitable(result) else result)

        return call

    def _blocking(self, result: Any) -> Any:
        if isinstance(result, penstock.aio.Queue):
            return BlockingQueue(self._loop, result)
        if isinstance(result, AsyncIterator):
            return self._iterate(result)
        if isinstance(result, list):
            return [self._blocking(each) for each in result]
        if isinstance(result, penstock.aio.Message):
            result.__class__ = penstock.Message  # type: ignore[assignment] # whose methods are its queue's
            if result._handle is not None:
                result._handle = BlockingQueue(self._loop, result._handle)  # type: ignore[assignment]
        return result

    def _iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        """An error comes at once, as from the iterators of penstock."""
        end = object()
        first = self._loop.run(anext(items, end))

        def rest() -> Iterator[Any]:
            item = first
            while item is not end:
                yield self._blocking(item)
                item = self._loop.run(anext(items, end))

        return rest()


class BlockingQueue(Blocking):
    @property
    def settings(self) -> penstock.Settings:
        settings: penstock.Settings = self._loop.run(self._target.settings())
        return settings

    def __len__(self) -> int:
        count: int = self._loop.run(self._target.count())
        return count

    def __bool__(self) -> bool:
        return True


class BlockingStore(Blocking):
    """`closed` is called once the store is closed."""

    def __init__(self, opening: Callable[[], Opening], closed: Callable[[], None] = lambda: None) -> None:
        loop = Loop()
        super().__init__(loop, loop.run(_open(opening)))
        self._closed: Callable[[], None] | None = closed

    def close(self) -> None:
        if self._closed is not None:
            self._loop.run(self._target.close())
            closed, self._closed = self._closed, None
            closed()
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


async def _open(opening: Callable[[], Opening]) -> penstock.aio.Store:
    return await opening()


async def _result(awaitable: Any) -> Any:
    return await awaitable
