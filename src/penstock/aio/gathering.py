"""Puts of different callers that come in the same turn of the event loop: made together, answered one by one.

Many messages at once cost a fraction of as many operations. A put that is refused is not the others' concern: then
each is made on its own.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.live.queue import LiveQueue
from penstock.message import Entry, Plain


class _Put(NamedTuple):
    """A message that has nothing but a payload, and who waits for its id."""

    payload: bytes
    answer: "asyncio.Future[str]"


class Gathering:
    """Puts of one event loop that are still to be made."""

    def __init__(self, commit: Callable[[LiveQueue, int], "asyncio.Future[object]"]) -> None:
        """`commit`: a future that is done once so much of a queue is on stable storage."""
        self._commit = commit
        self._waiting: dict[LiveQueue, list[_Put]] = {}

    def put(self, live: LiveQueue, payload: bytes) -> "asyncio.Future[str]":
        """The id, once the message is on stable storage."""
        loop = asyncio.get_running_loop()
        put = _Put(payload, loop.create_future())
        waiting = self._waiting.get(live)
        if waiting is None:
            self._waiting[live] = [put]
            loop.call_soon(self._make, live)
        else:
            waiting.append(put)
        return put.answer

    def _make(self, live: LiveQueue) -> None:
        puts = [put for put in self._waiting.pop(live) if not put.answer.done()]  # else the caller was cancelled
        if not puts:
            return
        try:
            entries = [Entry(puts[0].payload)] if len(puts) == 1 else Plain([put.payload for put in puts])
            self._answer(live, puts, *live.put(entries))
        except PenstockError as error:
            if len(puts) == 1:
                puts[0].answer.set_exception(error)
                return
            for put in puts:
                self._waiting[live] = [put]
                self._make(live)
        except BaseException as error:
            for put in puts:
                put.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _answer(self, live: LiveQueue, puts: list[_Put], ids: list[str], written: int) -> None:
        def answer(committed: "asyncio.Future[object] | None") -> None:
            error = None if committed is None else committed.exception()
            for put, each in zip(puts, ids, strict=True):
                if put.answer.done():
                    continue
                if error is None:
                    put.answer.set_result(each)
                else:
                    put.answer.set_exception(error)

        if written > live.durable:
            self._commit(live, written).add_done_callback(answer)
        else:
            answer(None)
