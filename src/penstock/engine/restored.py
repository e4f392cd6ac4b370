"""Messages that were elsewhere before, with what became of them there, on their way into a store."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.contract.message import Attempt
from penstock.rules.recent import pack
from penstock.rules.records import Restore
from penstock.rules.rows import AVAILABLE, DONE, FAILED

_KEPT = ("failed", "released")  # an attempt that was acknowledged is the message's own


class Restored(NamedTuple):
    """What became of messages, a value for each in every column; all of them are done, or none is."""

    received_at: Sequence[int]
    states: Sequence[int]
    attempts: Sequence[int]
    claimed_at: Sequence[int]  # 0 = never
    settled_at: Sequence[int]
    consumers: Sequence[str | None]
    reasons: Sequence[str | None]
    histories: Sequence[Sequence[Attempt] | None]

    @property
    def done(self) -> bool:
        """Whether they are done."""
        return self.states[0] == DONE


def restore(restored: Restored) -> Restore:
    """The record; who was at work on a message is no longer."""
    _, states, attempts, claimed_at, settled_at, consumers, reasons, histories = restored
    settled = [state in (DONE, FAILED) for state in states]
    history = {
        at: b"".join(pack(each) for each in ended if each.outcome in _KEPT)
        for at, ended in enumerate(histories)
        if ended
    }
    return Restore(
        0,
        0,
        bytes(state if kept else AVAILABLE for state, kept in zip(states, settled, strict=True)),
        attempts,
        claimed_at,
        settled_at,
        [consumer if kept else None for consumer, kept in zip(consumers, settled, strict=True)],
        reasons,
        {at: packed for at, packed in history.items() if packed},
    )
