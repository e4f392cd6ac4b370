"""Loads that clients send to a server on a folder that another process owns: it hands them on to the owner."""

from collections.abc import Mapping, Sequence

from penstock.client import loads
from penstock.client.calls import Call
from penstock.client.failures import TRIES, Refused
from penstock.client.keeper import Result
from penstock.client.loads import LoadingKeeper
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.landing import Landing
from penstock.settings import Settings
from penstock.sharing.guest import Gone, GuestKeeper
from penstock.uploads import Brought, NoSuchLoad, Outcome, Sent, TooManyLoads

# What a client says of errors that only servers know.
_NOT_THERE, _TOO_MANY = " (LoadNotFound)", " (Overloaded)"


class _Guest(GuestKeeper, LoadingKeeper):
    """Sends loads to the owner, once, and says what that says."""

    def _run(self, call: Call[Result], tries: int = TRIES) -> Result:
        try:
            return super()._run(call, tries)
        except Gone as gone:
            if isinstance(gone.failure, Refused) and not gone.failure.done:
                raise TooManyLoads(str(gone.failure).removesuffix(_TOO_MANY)) from None
            raise
        except PenstockError as error:
            if type(error) is PenstockError and str(error).endswith(_NOT_THERE):
                raise NoSuchLoad(str(error).removesuffix(_NOT_THERE)) from None
            raise


class GuestUploads:
    """Asks the owner, as any client would."""

    def __init__(self, folder: str, share: str, timeout: float | None, clock: Clock) -> None:
        self._keeper = _Guest(folder, share, timeout, clock)

    def run(self, run: str) -> list[Brought] | None:
        """What a run has brought into each queue; None if it has not taken effect."""
        brought = self._keeper.run(run)
        return None if brought is None else [Brought(*each) for each in brought]

    def begin(self, queues: Mapping[str, Settings]) -> str:
        """Open a load."""
        return self._keeper.begin(queues)

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Stage the next batch of a part."""
        self._keeper.add(load, part, number, queue, frame)

    def commit(self, load: str, sent: Sequence[Sent], run: str | None, sink: Landing | None = None) -> Outcome:
        """Let the parts that are named take effect."""
        return Outcome(*self._keeper.commit(load, [loads.Sent(*each) for each in sent], run, sink))

    def abort(self, load: str) -> None:
        """Drop a load, if it is open."""
        self._keeper.abort(load)

    def close(self) -> None:
        """Leave the owner alone."""
        self._keeper.close()
