"""What only slate stores can do, asked of their owner."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from penstock.client.answers import Answer
from penstock.client.calls import Call
from penstock.landing import Landing
from penstock.slate.bulk import encoded
from penstock.slate.intake import Frame, Load
from penstock.slate.routing import Matches
from penstock.wire import jsons

if TYPE_CHECKING:
    from penstock.sharing.guest import GuestKeeper

_JSON = "Content-Type: application/json\r\n"
_LONG = 3_600.0  # seconds that it may take beyond the usual


class SlateOwner(Protocol):
    """Whoever has the store open."""

    def take_in(self, load: Load) -> bool:
        """Let a load take effect; False if its run has before."""

    def run(self, name: str) -> list[list[Any]] | None:
        """What a run has brought into each queue: messages, bytes."""

    def tidy(self) -> None:
        """Let time take what it may, and remove files that nobody needs."""

    def position(self) -> int:
        """How far the queues are in the log."""

    def instance(self) -> str | None:
        """The instance that was opened."""

    def route(self, matches: Matches) -> dict[str, int]:
        """Deliver; how many messages were, by queue."""


class SlateGuest:
    """Asks the owner."""

    def __init__(self, keeper: "GuestKeeper") -> None:
        self._keeper = keeper

    def take_in(self, load: Load) -> bool:
        """Have a load take effect."""
        body = jsons.dumps(
            {
                "name": load.name,
                "frames": load.frames,
                "create": {name: asdict(settings) for name, settings in load.create.items()},
                "run": load.run,
                "sink": load.sink,
            }
        )
        return bool(self._ask("load", "POST /-/share/frames", body, "loaded"))

    def run(self, name: str) -> list[list[Any]] | None:
        """What a run has brought."""
        found: list[list[Any]] | None = self._ask(
            "look at a run", f"GET /-/share/run?run={quote(name, safe='')}", None, "brought"
        )
        return found

    def tidy(self) -> None:
        """Have it tidied."""
        self._ask("tidying", "POST /-/share/tidy", b"", "tidy")

    def position(self) -> int:
        """How far the queues are in the log."""
        return int(self._ask("look at the log", "GET /-/share/position", None, "position"))

    def instance(self) -> str | None:
        """The instance that was opened."""
        return self._keeper.instance()

    def route(self, matches: Matches) -> dict[str, int]:
        """Have messages delivered."""
        return dict(self._ask("routing", "POST /-/share/route", encoded(matches), "routed"))

    def _ask(self, name: str, start: str, body: bytes | None, wanted: str) -> Any:
        def read(answer: Answer) -> Any:
            return jsons.loads(answer.body)[wanted]

        return self._keeper._run(Call(name, start, "" if body is None else _JSON, body, True, read, _LONG))


def load_from_json(given: Mapping[str, Any]) -> Load:
    """The load that a guest names."""
    create = {name: jsons.settings_from_json(settings) for name, settings in given["create"].items()}
    sink = Landing(*given["sink"]) if given.get("sink") else None
    return Load(given["name"], [Frame(*each) for each in given["frames"]], create, given["run"], sink)
