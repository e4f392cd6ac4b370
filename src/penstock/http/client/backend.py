"""A store that is somewhere else."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

from penstock.contract.loads import AddToLoad, Loads
from penstock.contract.message import Message
from penstock.contract.names import DEFAULT
from penstock.contract.operation import Operation
from penstock.contract.operations import Claim, Lookup, Messages, Peek, Pop
from penstock.contract.settings import seconds
from penstock.errors import InvalidArgument
from penstock.http.client import address
from penstock.http.client.calls import Call, call_of
from penstock.http.client.failures import PATIENCE, TRIES, Failure, Patience, Turns
from penstock.http.client.pool import Pool
from penstock.system.clock import Clock, SystemClock

TIMEOUT = 60.0
LOADING = (TRIES, 120.0)  # tries and seconds, with a server that has too much to do
Result = TypeVar("Result")


class RemoteBackend:
    """Asks a server to keep queues. What fails on the way is tried again for a while, where that does no harm."""

    def __init__(
        self,
        url: str,
        timeout: float | None = None,
        clock: Clock | None = None,
        token: str | None = None,
        ca: str | None = None,
        patience: tuple[int, float] = (TRIES, PATIENCE),
    ) -> None:
        self._address = address.parse(url, token, ca)
        self._timeout = checked_timeout(timeout)
        self._clock = clock or SystemClock()
        self._pool = Pool(self._address)
        self._closing = threading.Event()
        self._tries, self._patience = patience

    def connect(self) -> None:
        """Find out whether the server is there, at once."""
        self._ask(call_of(Lookup(DEFAULT)), tries=1)

    def run(self, operation: Operation[Result]) -> Result:
        """Have an operation carried out."""
        if operation.listing:
            return self._listed(operation)  # type: ignore[return-value, arg-type]
        if operation.http.polls and operation.wait > 0:
            return self._taken(operation)  # type: ignore[no-any-return, arg-type]
        return self._ask(call_of(operation))

    def ask(self, call: Call[Result], tries: int = 0) -> Result:
        """Have a request carried out whose answer is read in another way, or that is tried more often."""
        return self._ask(call, tries)

    def _taken(self, operation: Claim | Pop) -> Any:
        """What a consumer gets, in several turns if it waits for long."""
        turns = Turns(operation.wait, self._clock)
        while True:
            taken = self._ask(call_of(replace(operation, wait=turns.next())))
            if taken or turns.over():
                return taken

    def _listed(self, operation: Peek | Messages) -> Iterator[Message]:
        """A listing, page by page."""
        left: Any = operation
        while left is not None and (page := list(self._ask(call_of(left)))):
            yield from page
            left = left.rest(len(page), page[-1])

    def close(self) -> None:
        """Leave the server alone; threads that wait get StoreClosed."""
        self._closing.set()
        self._pool.close()

    def _ask(self, call: Call[Result], tries: int = 0) -> Result:
        request = call.request(self._address.authority, self._address.credentials)
        patience: Patience | None = None
        while True:
            try:
                return call.result(self._pool.ask(request, self._timeout + call.wait))
            except Failure as failure:
                self._pool.check_open()
                if patience is None:
                    limits = (tries or self._tries, self._patience)
                    patience = Patience(self._address.url, call.name, call.repeatable, self._clock, *limits)
                pause = patience.pause(failure)
            if self._clock.wait(self._closing, pause):
                self._pool.check_open()


class RemoteLoads(Loads):
    """The loads of a server. A batch is sent again and again while the server has too much to do."""

    def __init__(self, url: str, patience: tuple[int, float] = LOADING, tries: int = 200) -> None:
        self.backend = RemoteBackend(url, patience=patience)
        self._tries = tries  # of a batch
        super().__init__(self.backend.run)

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Stage the next batch of a part, on stable storage; the last one again changes nothing."""
        self.backend.ask(call_of(AddToLoad(load, part, number, queue, frame)), self._tries)

    def close(self) -> None:
        """Leave the server alone."""
        self.backend.close()


def checked_timeout(timeout: float | None) -> float:
    """How long an answer may take."""
    if timeout is None:
        return TIMEOUT
    if seconds("timeout", timeout) == 0:
        raise InvalidArgument("timeout=0 leaves no time for an answer; give the seconds that one may take")
    return timeout


def open_remote(
    url: str, timeout: float | None, clock: Clock | None, token: str | None = None, ca: str | None = None
) -> RemoteBackend:
    """The backend of the store of a server that is there; StoreUnreachable if it is not."""
    backend = RemoteBackend(url, timeout, clock, token, ca)
    try:
        backend.connect()
    except BaseException:
        backend.close()
        raise
    return backend
