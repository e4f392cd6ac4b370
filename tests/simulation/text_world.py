"""A world whose store is made of text files, and what it goes through."""

from collections import Counter

from penstock import Draft, Message, Store
from penstock.contract.settings import Settings
from penstock.stores.text.backend import open_text
from penstock.stores.text.format import parse
from penstock.stores.text.variables import body, facts
from tests.simulation import scripts
from tests.simulation.world import FOLDER, UNSETTLED, Promise, Script, World


class TextWorld(World):
    """The same machine and the same promises, kept in text files."""

    def _open(self) -> None:
        self.backend = open_text(f"text:{FOLDER}", clock=self.clock, disk=self.disk, threads=self.scheduler)
        self._store = Store(FOLDER, self.backend)
        if "default" not in self.promises:
            self._promise("default", Settings())

    def check_ids(self, promise: Promise, ids: list[str]) -> None:
        repeated = {draft.key for draft in promise.history.keyed}
        assert repeated or not promise.ids & set(ids), f"{ids} were ids of others"

    def check_document(self, listing: dict[str, list[Message]]) -> None:
        """A reader of the format sees what was not acknowledged away, and at most what expired by itself."""
        for name, messages in listing.items():
            expected = Counter(message.payload for message in messages if message.state in UNSETTLED)
            path = self.backend._files()[name]
            with self.disk.open(path) as file:
                document = parse(file.read(0, file.size()))
            queued = [each for each in document.entries if each.control in "-!"]
            found = Counter(body(each, 0)[0] for each in queued)
            over = Counter(
                body(each, 0)[0] for each in queued if (facts(each).expires_at or 1e18) <= self.clock.now()
            )
            assert not expected - found, f"a reader of {name!r} misses {expected - found}"
            assert not found - expected - over, f"a reader of {name!r} sees {found - expected} too"


class SharedTextWorld(TextWorld):
    """Two processes have the store open; whoever asks asks one of them."""

    other: Store | None = None

    def _open(self) -> None:
        super()._open()
        self.other = Store(
            FOLDER, open_text(f"text:{FOLDER}", clock=self.clock, disk=self.disk, threads=self.scheduler)
        )

    @property
    def store(self) -> Store:
        one = super().store
        return one if self.other is None or self.random.random() < 0.5 else self.other

    def close(self) -> None:
        self.attempt(self.check, None)
        (first, self._store), (other, self.other) = (self._store, None), (self.other, None)
        for each in (first, other):
            if each is not None:
                self.attempt(each.close, None)


def payloads_like_lines(world: World) -> None:
    """Payloads of which any part, taken for lines, would be other messages."""
    world.open()
    ask = world.ask()
    lines = b"-a\n=b\n!c\n#d\n\\id=0123456789abcdef\n e\n\n\x00-f"
    for number in range(4):
        ask.put(lines * number + world.payload())
        ask.put_many([Draft(lines + world.payload(), headers={"a": "x\n-y"}), Draft(b"\n-\n" + world.payload())])
        ask.put(b"\xff\n-g" + world.payload())
        ask.ack(*ask.claim(2))
    world.reopen()
    ask.fail(*ask.claim(3), delay=5)
    world.close()


def two_processes(world: World) -> None:
    """Two have the store open, and take turns."""
    world.open()
    ask = world.ask()
    first, other = (
        world._store,
        Store(FOLDER, open_text(f"text:{FOLDER}", clock=world.clock, disk=world.disk, threads=world.scheduler)),
    )
    held: list[Message] = []
    for number in range(5):
        world._store = (first, other)[number % 2]
        ask.put_many([Draft(world.payload(), priority=number % 3), Draft(world.payload(), key=f"key {number}")])
        held += ask.claim(2, lease=7)
        world._store = (other, first)[number % 2]
        ask.put(retention=9)
        ask.ack(*held[:1])
        ask.release(*held[1:2])
        ask.fail(*held[2:3], delay=3)
        held = held[3:]
        ask.pop()
        world.clock.advance(2)
    ask.remove(*[message.id for message in ask.messages("available")[:2]])
    other.close()
    world._store = first
    world.close()


def compacting(world: World) -> None:
    """The mutex file is written anew again and again. Needs one that is soon long enough."""
    world.open()
    ask = world.ask()
    ask.put_many([Draft(world.payload()) for _ in range(6)])
    for number in range(8):
        for message in ask.claim(2, lease=5):
            (ask.ack, ask.release, ask.fail)[number % 3](message)
        ask.put(key=f"key {number}")
    world.reopen()
    world.close()


TEXT_SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        scripts.puts_and_acks,
        scripts.what_expires,
        scripts.batches,
        scripts.attempts_and_leases,
        scripts.groups_in_order,
        scripts.rotation_and_packing,
        scripts.queues_that_come_and_go,
        scripts.closing_and_opening,
        scripts.emptying,
        scripts.settings_that_change,
        payloads_like_lines,
        two_processes,
        compacting,
    )
}


def text_world(name: str, seed: object) -> TextWorld:
    return TextWorld(f"text {name} {seed}")
