"""What a world goes through in a known order: each script is about one thing that a crash must not break.

Scripts do not rely on any answer, so that they can go on after an error.
"""

import json
from contextlib import suppress
from dataclasses import asdict

import penstock
from penstock import Draft
from penstock.contract.settings import Settings
from penstock.stores.journal import groups
from penstock.stores.journal.files import FILL, filling_end
from penstock.stores.journal.format import (
    AddX,
    AddXid,
    ConfirmRemove,
    Entry,
    Remove,
    RemoveTentative,
    SaveXid,
    encode,
)
from tests.history import History
from tests.simulation.world import FOLDER, Promise, Script, World

BORN = 1_600_000_000_000  # when Kestrel took its items in
SECTOR = 64  # bytes; the real ones would need long journals


def puts_and_acks(world: World) -> None:
    world.open()
    ask = world.ask()
    ask.put()
    ask.put(priority=-5, headers={"kind": "urgent"}, key="once")
    ask.put(delay=10)
    for message in ask.claim(2):
        ask.ack(message)
    ask.put()
    ask.pop()
    ask.put(retention=5)
    world.clock.advance(7)
    held = ask.claim()
    held = ask.ack_and_claim(held, 2)
    ask.ack_and_claim(held)
    world.close()


def what_expires(world: World) -> None:
    world.open()
    ask = world.ask()
    ask.put()
    ask.put(retention=5)
    ask.put(delay=5)
    world.clock.advance(5)
    ask.put(retention=5)
    ask.claim(2)
    world.clock.advance(5)
    ask.put()
    ask.pop()
    world.close()


def batches(world: World) -> None:
    world.open()
    ask = world.ask()
    ask.put_many([Draft(world.payload(), priority=number % 2) for number in range(5)])
    ask.put_many([Draft(world.payload(200), key=f"key {number}") for number in range(3)])
    claimed = ask.claim(4)
    ask.put_many([Draft(world.payload(), delay=1), Draft(world.payload(), retention=3)])
    ask.ack(*claimed[:3])
    ask.remove(*[message.id for message in ask.messages("available")[:2]])
    ask.purge()
    world.close()


def attempts_and_leases(world: World) -> None:
    world.open()
    world.create("jobs", max_attempts=2, keep_done=60, max_lease=40, description="work")
    ask = world.ask("jobs")
    ask.put_many([Draft(world.payload()) for _ in range(5)])
    claimed = ask.claim(5, lease=10)
    ask.fail(*claimed[:1], delay=5, reason="not today")
    ask.release(*claimed[1:2])
    ask.extend(*claimed[2:], lease=30)
    ask.ack(*claimed[2:3])
    ask.revoke(*[message.id for message in claimed[2:4]])
    world.clock.advance(11)
    for message in ask.claim(2, lease=1):
        ask.fail(message, reason="never")
    world.clock.advance(30)
    ask.claim(5, lease=1)
    world.clock.advance(2)
    ask.messages()
    ask.redrive(*[message.id for message in ask.messages("failed")[:1]])
    ask.redrive()
    world.clock.advance(60)
    ask.put()
    world.close()


def groups_in_order(world: World) -> None:
    world.open()
    world.create("jobs", max_attempts=2, keep_done=30)
    ask = world.ask("jobs")
    ask.put(group="a")
    ask.put_many([Draft(world.payload(200), -number, group="abb"[number % 3]) for number in range(4)])
    ask.put_many([Draft(world.payload()), Draft(world.payload(), delay=5, group="b")])
    claimed = ask.claim(9, lease=10)
    ask.ack(*claimed[:1])
    ask.fail(*claimed[1:2], delay=3, reason="later")
    ask.claim(9, lease=2)
    world.pack("jobs")
    world.clock.advance(3)
    for message in ask.claim(9):
        ask.fail(message)
    world.reopen()
    ask.redrive()
    ask.ack(*ask.claim(2))
    ask.put(group="b", retention=5)
    world.pack("jobs")
    world.reopen()
    world.clock.advance(40)
    ask.ack(*ask.claim(9))
    ask.pop()
    world.close()


def rotation_and_packing(world: World) -> None:
    world.open()
    world.create("jobs", keep_done=30, max_attempts=1)
    ask = world.ask("jobs")
    for number in range(6):
        ask.put_many([Draft(world.payload(250), priority=-number, key=f"key {number}") for _ in range(1)])
        ask.put(world.payload(250), delay=20)
        for message in ask.claim(1, lease=15):
            (ask.ack, ask.fail)[number % 2](message)
    world.pack("jobs")
    ask.put()
    world.clock.advance(16)
    ask.purge()
    ask.put(world.payload(900))
    world.clock.advance(30)
    ask.put(world.payload(900))
    ask.pop()
    world.pack("jobs")
    world.close()


def packing_together(world: World) -> None:
    world.open()
    world.create("jobs", keep_done=30, max_attempts=1)
    ask, other = world.ask("jobs"), world.ask()
    for number in range(4):
        ask.put(world.payload(300), priority=-number, key=f"key {number}")
        other.put(world.payload(300), retention=20)
        for message in ask.claim(1, lease=15):
            (ask.ack, ask.fail)[number % 2](message)

    def go_on() -> None:
        ask.put(world.payload(300))
        ask.pop()
        other.ack(*other.claim(2))

    world.pack_together("jobs", "default", meanwhile=go_on)
    world.clock.advance(25)
    other.put()
    other.pop()
    world.pack_together("jobs", "default")
    world.close()


def queues_that_come_and_go(world: World) -> None:
    world.open()
    world.create("one", retention=100)
    ask = world.ask("one")
    ask.put()
    world.create("Two/../" + "x" * 220, priorities=(0, 9))
    world.ask("Two/../" + "x" * 220).put(priority=9)
    ask.claim()
    world.delete("one")
    world.create("one", max_size=5)
    ask.put()
    ask.pop()
    world.create("ONE")
    world.ask("ONE").put()
    world.delete("ONE")
    world.delete("one")
    world.reopen()
    world.create("one")
    ask.put()
    world.close()


def closing_and_opening(world: World) -> None:
    world.open()
    ask = world.ask()
    ask.put(key="once")
    claimed = ask.claim(lease=100)
    ask.put(delay=50)
    world.reopen()
    ask.ack(*claimed)
    ask.put(world.payload(), key="twice")
    world.reopen()
    world.reopen()
    ask.claim(5, lease=1)
    world.clock.advance(60)
    world.reopen()
    ask.pop()
    world.close()


def emptying(world: World) -> None:
    world.open()
    ask = world.ask()
    for _ in range(3):
        ask.put_many([Draft(world.payload(400)) for _ in range(6)])
        ask.ack(*ask.claim(6))
    ask.put(key="again")
    ask.pop()
    world.pack("default")
    world.reopen()
    ask.put_many([Draft(world.payload(800)) for _ in range(2)])
    world.pack("default")
    ask.purge()
    world.pack("default")
    ask.put()
    world.close()


def settings_that_change(world: World) -> None:
    """Replay does everything by the settings of its time."""
    world.open()
    world.create("jobs", max_attempts=2, keep_done=30, max_lease=40)
    ask = world.ask("jobs")
    ask.put_many([Draft(world.payload()) for _ in range(6)])
    ask.ack(*ask.claim(1))
    held = ask.claim(3, lease=100)
    world.update("jobs", keep_done=None, max_attempts=1, description="longer")
    ask.fail(*held[:1])
    ask.ack(*held[1:2])
    world.ask().put()
    world.ask().pop()
    world.update("default", keep_done=None)
    world.clock.advance(35)
    world.pack("jobs")
    world.update("jobs", keep_done=0, max_attempts=3, max_lease=5)
    ask.claim(2, lease=100)
    world.reopen()
    world.clock.advance(6)
    ask.ack(*ask.claim(1))
    world.update("jobs", keep_done=60)
    ask.ack(*ask.claim(2))
    world.pack("jobs")
    ask.purge()
    ask.put(key="once")
    ask.purge()
    world.clock.advance(400)
    ask.put()
    ask.pop()
    world.clock.advance(61)
    world.pack("jobs")
    world.update("jobs", max_attempts=2, keep_done=30, max_lease=40, description="")
    world.pack("jobs")
    world.update("jobs", max_size=1)
    ask.put()
    world.reopen()
    world.close()


def adopting(world: World) -> None:
    """Needs what `leave_kestrel_journal` leaves."""
    world.open()
    ask = world.ask("cars")
    ask.put()
    ask.ack(*ask.claim(2))
    world.reopen()
    ask.fail(*ask.claim(1))
    world.pack("cars")
    ask.put()
    world.close()


def leave_kestrel_journal(world: World) -> None:
    """A folder as Kestrel leaves one: a queue in several files, one of them dead, an open read, and a torn end."""
    texts = [f"car {number}".encode() for number in range(8)]
    adds: list[Entry] = [AddX(BORN, 0, text) for text in texts]
    files: dict[str, list[Entry]] = {
        "cars.1600000000050": [AddX(BORN, 0, b"dead car")],
        "cars.1600000000100.pack": [adds[0], adds[1], RemoveTentative(), adds[2], ConfirmRemove(1)],
        "cars.1600000000200": [SaveXid(7), AddXid(7, BORN, 0, texts[3]), RemoveTentative(), adds[4], adds[5]],
        "cars": [Remove(), adds[6], adds[7]],
    }
    torn = encode(AddX(BORN, 0, b"never whole"))[:-3]
    world.disk.mkdir(FOLDER)
    for name, entries in files.items():
        with world.disk.open(f"{FOLDER}/{name}", create=True) as file:
            file.append(b"".join(map(encode, entries)) + (torn if name == "cars" else b""))
            file.sync()
    world.disk.sync_folder(FOLDER)
    world.disk.sync_folder("/")
    promise(world, "cars", [texts[number] for number in (1, 3, 4, 5, 6, 7)])


def promise(world: World, name: str, payloads: list[bytes]) -> None:
    """As if these had been put into the queue before."""
    history = History(world.clock.now, Settings())
    drafts = [
        {**asdict(Draft(payload.decode(), headers={}, created_at=BORN)), "payload": payload.decode()}
        for payload in payloads
    ]
    ids = [str(number) for number in range(1, len(payloads) + 1)]
    put = {"event": "start", "op": "kestrel", "at": BORN, "do": "put", "drafts": drafts}
    told = {"event": "told", "op": "kestrel", "at": world.clock.now(), "ids": ids}
    history.feed(json.dumps(event) + "\n" for event in (put, told))
    world.promises[name] = Promise(Settings(), history)


def filling_up(world: World) -> None:
    """Needs a disk that is soon full."""
    world.open()
    ask = world.ask()
    for _ in range(20):
        with suppress(penstock.QueueFull):
            ask.put_many([Draft(world.payload(700), key=f"key {world.payloads}"), Draft(world.payload())])
    claimed = ask.claim(2)
    ask.ack(*claimed)
    ask.fail(*ask.claim())
    ask.pop()
    world.reopen()
    for message in ask.claim(50):
        ask.ack(message)
    world.pack("default")
    ask.put_many([Draft(world.payload(700)) for _ in range(3)])
    world.close()


def payloads_like_entries(world: World) -> None:
    """Payloads of which any part, taken for Kestrel's entries, would take away a message that was there before.

    Some look like the filling up to where that ends. Needs a disk that tears writes by sectors, and long files.
    """
    world.open()
    ask = world.ask()
    world.backend._queues["default"]._ledger.state.skip_to(0x06060606)
    ask.put()
    for size in (10, 200, 330, 0, 10, 300, 250, 0, 700, 10, 400, 0, 10, 330, 310, 10, 450, 0, 10, 420):
        ask.put((CONFIRMING * size if size else filling_and_entries(world)) + world.payload())
    for _ in range(3):
        world.reopen()
        ask.put(filling_and_entries(world) + world.payload())
        ask.put(CONFIRMING * 300 + world.payload())
    world.close()


CONFIRMING = encode(ConfirmRemove(0x06060606))[:1]  # five of them, wherever they start


def filling_and_entries(world: World) -> bytes:
    """A payload that goes on as the filling up to its end, and then otherwise."""
    end: int = world.attempt(lambda: world.backend.stored("default"), 0)
    start = end + groups.HEAD_SIZE + len(encode(AddX(0, 0, b"")))
    return FILL * (filling_end(end) - start) + CONFIRMING * 150


def tear_by_sectors(world: World) -> None:
    world.disk.sector = SECTOR
    world.segment_size = 50_000


def limit_disk(world: World) -> None:
    world.disk.capacity = 20_000


SCRIPTS: dict[str, Script] = {
    script.__name__: script
    for script in (
        puts_and_acks,
        what_expires,
        batches,
        attempts_and_leases,
        groups_in_order,
        rotation_and_packing,
        packing_together,
        queues_that_come_and_go,
        closing_and_opening,
        emptying,
        settings_that_change,
        adopting,
        filling_up,
        payloads_like_entries,
    )
}
PREPARATIONS: dict[str, Script] = {
    "adopting": leave_kestrel_journal,
    "filling_up": limit_disk,
    "payloads_like_entries": tear_by_sectors,
}


def world_for(name: str, seed: object) -> World:
    """A world in which the script of that name can run."""
    world = World(f"{name} {seed}")
    if name in PREPARATIONS:
        PREPARATIONS[name](world)
    return world
