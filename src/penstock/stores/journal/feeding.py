"""What one who follows a queue of a journal store is told, and given, from the files that its follower reads."""

from collections.abc import Iterator

from penstock.contract.message import STATES, Message
from penstock.contract.streams import Ahead
from penstock.engine.follow import PAGE, fitting, parts_of
from penstock.engine.views import fill
from penstock.stores.journal import places
from penstock.stores.journal.files import PLACE_BITS, offset_of
from penstock.stores.journal.following import Follower
from penstock.stores.journal.places import Found

_READ_AHEAD = 4 << 20  # neighbours are read at once up to this


class JournalFeed:
    """Reads for one who follows. `owner` is the process that files are held for."""

    def __init__(self, folder: str, queue: str, owner: int) -> None:
        self.follower = Follower(folder, queue, owner)
        self._queue = queue

    @property
    def begin(self) -> int:
        """What entered after this number can be asked for."""
        return self.follower.begin

    def start(self, starting: str | int) -> tuple[int, int]:
        """Where to begin, see Streams.start."""
        if isinstance(starting, int):
            after, gaps = self.follower.entered_before(starting)
        else:
            after, gaps = self.follower.earliest()
            after = self.follower.latest() if starting == "latest" else after
        return after, max(gaps, after + 1)

    def follow(self, after: int) -> None:
        """Begin after a number."""
        self.follower.start(after)

    def ahead(self, after: int, gaps: int, rows: int, size: int, until: int) -> Ahead:
        """What has entered, see Streams.ahead."""
        follower, entries = self.follower, self.follower.entries
        follower.forget(after)
        if until:
            follower.fill(0, until)
        elif rows:
            follower.fill(rows)
            count = fitting(entries.size, rows, size)
            until = entries.seq[count - 1] if count else follower.last
        until = max(after, until)
        start, end = entries.between(after, until)
        parts = parts_of(entries.seq[start:end], entries.size[start:end])
        return Ahead(until, parts, follower.lost_between(max(after + 1, gaps), until))

    def messages(self, after: int, until: int, limit: int) -> list[Message]:
        """Some messages as they entered."""
        self.follower.fill(0, until)
        entries = self.follower.entries
        start, end = entries.between(after, until)
        end = min(end, start + limit)
        end = start + fitting(entries.size[start:end], limit, PAGE)
        messages = [
            Message(
                str(entries.seq[at]),
                self._queue,
                b"",
                {},
                entries.priority[at],
                0,
                0,
                entries.visible_at[at],
                entries.expires_at[at] or None,
                0,
                STATES[entries.state[at] - 1],
            )
            for at in range(start, end)
        ]
        return fill(messages, places.read(list(self._found(start, end)), self._queue, lambda: False))

    def _found(self, start: int, end: int) -> Iterator[Found]:
        """Where the bodies of entries are, neighbours together."""
        entries, files = self.follower.entries, self.follower.files()
        while start < end:
            first, stop = entries.place[start], start + 1
            number, before = first >> PLACE_BITS, first + _READ_AHEAD
            while stop < end and entries.place[stop] >> PLACE_BITS == number and entries.place[stop] < before:
                stop += 1
            starts = [place - first for place in entries.place[start:stop]]
            sizes, crcs = entries.size[start:stop].tolist(), entries.crc[start:stop].tolist()
            yield Found(files[number], offset_of(first), starts, sizes, crcs)
            start = stop

    def look(self) -> None:
        """Hold the files that are there."""
        self.follower.look()

    def held_back(self) -> int:
        """Bytes that are stored for its sake alone."""
        return self.follower.held_back()

    def close(self) -> None:
        """Let go of the files."""
        self.follower.close()
