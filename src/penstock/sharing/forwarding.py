"""A server on a folder that another process owns: what it is asked it asks the owner, until it is the owner."""

import asyncio

from penstock.contract.names import DEFAULT
from penstock.contract.operations import Lookup, Queues
from penstock.contract.settings import MAX_PAYLOAD
from penstock.engine.coroutines import COMMIT_RECORDS, COMMIT_SECONDS, LocalBackend
from penstock.engine.queue import Figures
from penstock.sharing.coroutines import GuestBackend, SharedBackend
from penstock.system.histogram import Histogram


class ForwardingBackend(SharedBackend):
    """What `aio.local.LocalBackend` has beyond the contract, for stores of other processes."""

    descriptors = 2  # of a request that waits: it waits at the owner, too
    commit_seconds, commit_records = Histogram(COMMIT_SECONDS), Histogram(COMMIT_RECORDS)  # its owner commits

    @property
    def failure(self) -> BaseException | None:
        """What has stopped the store; of an owner elsewhere nothing is known but its answers."""
        return self._backend.failure if isinstance(self._backend, LocalBackend) else None

    def is_open(self) -> bool:
        """Whether operations are carried out."""
        return not self._closed and (isinstance(self._backend, GuestBackend) or self._backend.is_open())

    async def check(self) -> None:
        """Raise what is wrong with the store, as its owner says."""
        await self.run(Lookup(DEFAULT))

    def longest_commit(self) -> float:
        """Seconds for which a commit has been running, as far as this process knows."""
        return self._backend.longest_commit() if isinstance(self._backend, LocalBackend) else 0.0

    def tend(self) -> "asyncio.Future[None]":
        """Let time have passed in queues where nobody comes by: the owner does that for itself."""
        if isinstance(self._backend, LocalBackend):
            return self._backend.tend()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def figures(self) -> list[Figures]:
        """How every queue is, as far as this process knows."""
        if isinstance(self._backend, LocalBackend):
            return await self._backend.figures()
        return [Figures(each.name, True, each.counts, 0, 0, {}, 0, 0, 0) for each in await self.run(Queues())]

    def max_payload(self, queue: str) -> int:
        """The largest payload of any queue: the owner knows better."""
        return MAX_PAYLOAD

    async def detach(self) -> None:
        """Leave the store."""
        await self.close()
