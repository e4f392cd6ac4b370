"""Puts of different callers that come in the same two turns of the event loop: made together, answered one by one.

Many messages at once cost a fraction of as many operations. A put that is refused is not the others' concern: then
each is made on its own.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from penstock.contract.message import Entry, Plain
from penstock.engine.queue import LiveQueue
from penstock.errors import PenstockError

Committed: TypeAlias = Callable[[BaseException | None], None]  # with what went wrong


class Asker(Protocol):
    """Who waits for the id of a message: a future, or what is told as one is."""

    def done(self) -> bool:
        """Whether nobody waits any more."""

    def set_result(self, id: str, /) -> None:  # noqa: A002 - the contract's word
        """The message is on stable storage."""

    def set_exception(self, error: BaseException, /) -> None:
        """It is not, or nobody can know."""


class _Put(NamedTuple):
    """A message that has nothing but a payload, and who waits for its id."""

    payload: bytes
    asker: Asker


class Gathering:
    """Puts of one event loop that are still to be made."""

    def __init__(self, commit: Callable[[LiveQueue, int, bool, Committed], None]) -> None:
        """`commit` calls back once so much of a queue is on stable storage; it hears whether others wait, too."""
        self._commit = commit
        self._waiting: dict[LiveQueue, list[_Put]] = {}

    def put(self, live: LiveQueue, payload: bytes, asker: Asker) -> None:
        """Tell the id, once the message is on stable storage."""
        waiting = self._waiting.get(live)
        if waiting is None:
            self._waiting[live] = [_Put(payload, asker)]
            loop = asyncio.get_running_loop()
            # Not in the next turn but in the one after it, with those who come a little later.
            loop.call_soon(loop.call_soon, self._make, live)
        else:
            waiting.append(_Put(payload, asker))

    def _make(self, live: LiveQueue) -> None:
        puts = [put for put in self._waiting.pop(live) if not put.asker.done()]  # else the caller was cancelled
        if puts:
            self._make_together(live, puts)

    def _make_together(self, live: LiveQueue, puts: list[_Put]) -> None:
        try:
            entries = [Entry(puts[0].payload)] if len(puts) == 1 else Plain([put.payload for put in puts])
            self._answer(live, puts, *live.put(entries))
        except PenstockError as error:
            if len(puts) == 1:
                puts[0].asker.set_exception(error)
                return
            for put in puts:
                self._make_together(live, [put])
        except BaseException as error:
            for put in puts:
                put.asker.set_exception(error)
            if not isinstance(error, Exception):
                raise

    def _answer(self, live: LiveQueue, puts: list[_Put], ids: list[str], written: int) -> None:
        def answer(error: BaseException | None) -> None:
            for put, each in zip(puts, ids, strict=True):
                if put.asker.done():
                    continue
                if error is None:
                    put.asker.set_result(each)
                else:
                    put.asker.set_exception(error)

        if written > live.durable:
            self._commit(live, written, bool(self._waiting), answer)
        else:
            answer(None)
