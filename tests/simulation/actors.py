"""Who uses a store all at once: producers, consumers, those who tidy up, and time itself."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from penstock import Draft, Message, QueueFull
from tests.simulation.world import Asking, World

PRIORITIES = (0, 0, 0, -1, 5)
Act = Callable[[World, Random], None]


def produce(world: World, random: Random) -> None:
    ask = some_queue(world, random)
    try:
        if random.random() < 0.3:
            ask.put_many([draft(world, random) for _ in range(random.randint(1, 6))])
        elif random.random() < 0.2 and ask.history.keyed:
            ask.put_many([random.choice(ask.history.keyed)])  # again
        else:
            ask.put_many([draft(world, random)])
    except QueueFull:
        pass


def draft(world: World, random: Random) -> Draft:
    fields: dict[str, Any] = {"priority": random.choice(PRIORITIES)}
    if random.random() < 0.2:
        fields["delay"] = random.choice((0.001, 1, 10))
    if random.random() < 0.2:
        fields["retention"] = random.choice((0.5, 5, 60))
    if random.random() < 0.2:
        fields["key"] = f"key {world.payloads}"
    if random.random() < 0.2:
        fields["headers"] = {"number": str(world.payloads), "kind": "simulated"}
    if world.grouped and random.random() < 0.4:
        fields["group"] = random.choice("ab")
    return Draft(world.payload(random.choice((0, 0, 50, 700))), **fields)


def consume(world: World, random: Random) -> None:
    ask = some_queue(world, random)
    if random.random() < 0.2:
        ask.pop()
        return
    messages = ask.claim(random.choice((1, 1, 2, 5)), random.choice(world.leases))
    if random.random() < 0.2:
        ask.extend(*messages, lease=random.choice(world.extensions))
    if random.random() < 0.2:
        messages = ask.ack_and_claim(messages, random.choice((1, 3)), random.choice(world.leases))
    settle_some(ask, messages, random)


def settle_some(ask: Asking, messages: list[Message], random: Random) -> None:
    kinds: list[Callable[..., object]] = [ask.ack, ask.ack, ask.ack, ask.release, ask.fail]
    kinds.append(partial(ask.fail, delay=random.choice((1, 5)), reason="simulated"))
    if random.random() < 0.5:
        for message in messages:
            if random.random() < 0.8:  # others are forgotten, and their leases end
                random.choice(kinds)(message)
    elif messages:
        random.choice(kinds)(*messages)
    if random.random() < 0.1 and ask.history.receipts:
        receipt = random.choice(list(ask.history.receipts))
        random.choice([*kinds, ask.extend])(receipt)  # whosever, and however old


def tidy_up(world: World, random: Random) -> None:
    ask = some_queue(world, random)
    chance = random.random()
    if chance < 0.3:
        ask.redrive()
    elif chance < 0.35:
        ask.purge()
    elif chance < 0.7:
        ask.remove(*[message.id for message in ask.messages() if random.random() < 0.2])
    elif chance < 0.75:
        ask.redrive(*[message.id for message in ask.messages("failed")[:1]])
    elif chance < 0.85:
        ask.revoke(*[message.id for message in ask.messages("in_flight")[:2]])
    else:
        world.pack(random.choice(("default", "jobs")))


def come_and_go(world: World, random: Random) -> None:
    """A queue of its own, which nobody else uses."""
    known = world.promises.get("passing")
    if known is None or not known.there:
        world.create("passing", max_size=random.randint(0, 3))
    elif random.random() < 0.3:
        world.delete("passing")
    else:
        try:
            world.ask("passing").put()
        except QueueFull:
            world.ask("passing").pop()


def let_time_pass(world: World, random: Random) -> None:
    for _ in range(random.randint(1, 10)):
        world.scheduler.pause()
    world.clock.advance(random.choice((0.001, 0.2, 1, 5)))


def some_queue(world: World, random: Random) -> Asking:
    return world.ask(random.choice(("default", "jobs", "jobs")))


ACTORS: dict[str, tuple[Act, int]] = {  # and how many things each does
    "producer 1": (produce, 8),
    "producer 2": (produce, 8),
    "consumer 1": (consume, 8),
    "consumer 2": (consume, 8),
    "tidier": (tidy_up, 4),
    "passer": (come_and_go, 4),
    "time": (let_time_pass, 20),
}


def live(world: World) -> None:
    """Open the store, and let all use it."""
    world.open()
    world.check(reopened=True)
    if "jobs" not in world.promises or not world.promises["jobs"].there:
        world.create("jobs", max_attempts=3, keep_done=10, max_lease=world.longest)
    for name, (act, times) in ACTORS.items():
        world.scheduler.start(name, partial(repeat, act, times, world, Random(f"{name} {world.seed}")))


def repeat(act: Act, times: int, world: World, random: Random) -> None:
    for _ in range(times):
        act(world, random)


def rest(world: World) -> None:
    """Close the store when all have come to their end."""
    listing = world.listing()
    world.close()
    world.check_document(listing)
