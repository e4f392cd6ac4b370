"""Loads that are sent to a server: many messages, by many senders, that take effect all at once.

What fails on the way is tried again: no call of these does harm twice.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from penstock.client.answers import Answer
from penstock.client.calls import Call
from penstock.client.failures import Patience
from penstock.client.keeper import RemoteKeeper
from penstock.settings import Settings
from penstock.wire import frames, jsons

_JSON = "Content-Type: application/json\r\n"
_FRAME = f"Content-Type: {frames.MEDIA_TYPE}\r\n"
_PATIENCE, _TRIES = 120.0, 200  # with a server that has too much to do: whoever loads has time
_LONG = 600.0  # seconds that an answer may take beyond the usual


class Sent(NamedTuple):
    """A part of a load, and how many batches it has."""

    part: str
    batches: int


class Loaded(NamedTuple):
    """What became of a load: so many messages, or none as its run has taken effect before."""

    loaded: bool
    messages: int


class Brought(NamedTuple):
    """What a run has brought into a queue."""

    queue: str
    messages: int
    bytes: int  # of payloads


class LoadingKeeper(RemoteKeeper):
    """Sends loads to a server."""

    def run(self, run: str) -> list[Brought] | None:
        """What a run has brought; None if it has not taken effect."""

        def read(answer: Answer) -> list[Brought] | None:
            queues = jsons.loads(answer.body)["queues"]
            return (
                None if queues is None else [Brought(*(each[name] for name in Brought._fields)) for each in queues]
            )

        return self._run(Call("look at a run", f"GET /-/runs/{quote(run, safe='')}", "", None, True, read))

    def begin(self, queues: Mapping[str, Settings]) -> str:
        """Open a load, which will make these queues if they are not there by then; its name."""

        def read(answer: Answer) -> str:
            return str(jsons.loads(answer.body)["load"])

        body = jsons.dumps({"queues": {name: dict(settings) for name, settings in queues.items()}})
        return self._run(Call("beginning of a load", "POST /-/loads", _JSON, body, True, read))

    def add(self, load: str, part: str, number: int, queue: str, frame: bytes) -> None:
        """Send the next batch of a part; it is on stable storage then."""
        start = f"PUT {_path(load)}/{quote(part, safe='')}/{number}?queue={quote(queue, safe='')}"
        self._run(Call("sending of a batch", start, _FRAME, frame, True, lambda answer: None, _LONG), _TRIES)

    def commit(
        self, load: str, sent: Sequence[Sent], run: str | None, sink: tuple[str, str, int] | None = None
    ) -> Loaded:
        """Let the parts that are named take effect, in this order."""

        def read(answer: Answer) -> Loaded:
            said = jsons.loads(answer.body)
            return Loaded(bool(said["loaded"]), int(said["messages"]))

        given: dict[str, Any] = {"parts": [each._asdict() for each in sent], "run": run}
        if sink is not None:  # a batch of a stream: the sink, the query, the number
            given["sink"] = dict(zip(("id", "query", "batch"), sink, strict=True))
        body = jsons.dumps(given)
        return self._run(Call("commit of a load", f"POST {_path(load)}/commit", _JSON, body, True, read, _LONG))

    def abort(self, load: str) -> None:
        """Drop a load that has not taken effect."""
        self._run(Call("end of a load", f"DELETE {_path(load)}", "", None, True, lambda answer: None))

    def _patience(self, call: Call[Any], tries: int) -> Patience:
        return Patience(self._address.url, call.name, call.repeatable, self._clock, tries, _PATIENCE)


def _path(load: str) -> str:
    return f"/-/loads/{quote(load, safe='')}"
