"""Checks the answers and listings of a queue against the rules that concern several messages.

These are: the put that a message came from, batches, keys, receipts, the order of claiming, groups, and how much
an unanswered claim can explain. `history_life` checks each message by itself.
"""

import json
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

from penstock.contract.settings import FIVE_MINUTES, Settings
from tests.history_life import SETTLING, Guess, Life, Operation, Record, lease_of, retention

_UNCHANGING = ("payload", "headers", "priority", "created_at", "received_at", "expires_at", "group")


class Violation(AssertionError):
    """The store broke a promise."""


class Checker:
    """The history of one queue, as far as it was checked."""

    def __init__(self, settings: Settings, prompt: bool = True) -> None:
        self._settings = settings
        self._prompt = prompt
        self._number = 0  # of the event
        self._latest = 0  # time: a store's never runs backwards
        self._operations: dict[str, Operation] = {}  # those that may still take effect
        self._wide: list[Operation] = []  # of those: what may concern any message
        self._lives: dict[str, Life] = {}
        self._over: dict[str, Life] = {}  # messages that are gone
        self._keys: dict[str, list[Life]] = {}
        self._groups: dict[str, list[Life]] = {}
        self._payloads: dict[str, str | None] = {}  # all that were put, and under which key
        self._owners: dict[str, Life] = {}  # by receipt
        self._unseen: dict[str, list[tuple[Operation, int]]] = {}  # put without an answer, by payload
        self._vanished: dict[str, tuple[Operation, int]] = {}  # those that may have gone unseen, by key
        self._available: list[tuple[int, tuple[int, int], str]] = []  # certainly: priority, place, id

    def use(self, settings: Settings) -> None:
        """Hold the queue to other settings from here on."""
        self._settings = settings
        for life in (*self._lives.values(), *self._over.values()):
            life.settings = settings

    def check(self, events: Sequence[Record]) -> None:
        """The next events, up to a listing."""
        reopened = events[-1]["reopened"]
        new = self._outcomes(events, reopened)
        self._wide = [operation for operation in self._operations.values() if _may_concern_any(operation)]
        self._find_messages(new, events)
        for event in events:
            self._number += 1
            self._latest = max(self._latest, event["at"])
            operation = self._operations.get(event.get("op", ""))
            if event["event"] == "shown":
                self._show(event)
            elif operation is not None and not operation.refused:
                self._follow(event["event"], operation)
        if reopened:
            self._operations.clear()
            self._unseen.clear()
        else:
            answered = [each.name for each in self._operations.values() if each.told or each.refused]
            for name in answered:
                del self._operations[name]

    # What became of each operation

    def _outcomes(self, events: Iterable[Record], reopened: bool) -> list[Operation]:
        new, running = [], set()
        latest = self._latest
        for number, event in enumerate(events, self._number + 1):
            latest = max(latest, event["at"])
            if event["event"] == "start":
                if event["op"] in self._operations:
                    raise ValueError(f"two operations are named {event['op']!r}: name each History differently")
                operation = Operation(event["op"], event["do"], event, event["at"], number)
                self._operations[operation.name] = operation
                new.append(operation)
                running.add(operation.name)
            elif event["event"] != "shown":
                running.discard(event["op"])
                if event["op"] not in self._operations:
                    if event["event"] == "told":
                        raise ValueError(f"{event['op']} was answered by a store that had crashed: {event}")
                    continue  # it raised only after the store was opened again
                operation = self._operations[event["op"]]
                if event["event"] == "unknown":
                    operation.raised = True
                else:
                    operation.end, operation.ended = latest, number
                    operation.refused = event["event"] == "refused"
                    operation.told = None if operation.refused else event
        if running and not reopened:
            raise ValueError(f"check() while operations run: {', '.join(sorted(running))}")
        return [operation for operation in new if not operation.refused]

    # Which messages there are

    def _find_messages(self, new: Iterable[Operation], events: Iterable[Record]) -> None:
        puts = [operation for operation in new if operation.do == "put"]
        for put in puts:
            self._check_payloads(put)
            if put.told is not None:
                for place, name in enumerate(put.told["ids"]):
                    self._came_from(self._life(name) or self._born(name), put, place)
        for put in puts:
            if put.told is None:
                for place, draft in enumerate(put.asked["drafts"]):
                    self._unseen.setdefault(_text(draft["payload"]), []).append((put, place))
                    for life in self._keys.get(draft["key"], ())[-1:]:
                        self._came_from(life, put, place)  # or repeats the put of it
        for event in events:
            for message in event.get("messages", ()):
                self._meet(message)
                if event["event"] == "told":
                    self._check_given(message, self._operations[event["op"]])
        for put in puts:
            self._check_keys(put)

    def _check_payloads(self, put: Operation) -> None:
        for draft in put.asked["drafts"]:
            payload, key = _text(draft["payload"]), draft["key"]
            if payload in self._payloads and (key is None or self._payloads[payload] != key):
                raise ValueError(f"the payload {payload} is put twice: a history needs different ones")
            self._payloads[payload] = key

    def _life(self, name: str) -> Life | None:
        if name in self._over:  # something was asked or told about it, so it is followed again
            self._lives[name] = self._over.pop(name)
        return self._lives.get(name)

    def _born(self, name: str, since: int = 0) -> Life:
        life = self._lives[name] = Life(name, self._settings, prompt=self._prompt)
        for operation in self._wide:
            if since < operation.ended and operation.begun <= self._number:
                life.open[operation.name] = operation
                operation.lives.append(life)
        return life

    def _came_from(self, life: Life, put: Operation, place: int) -> None:
        if put.name in life.drafts:
            return  # the same key twice in one batch
        self._life(life.id)
        life.came_from(put, place)
        put.lives.append(life)
        if put.begun <= self._number:
            life.open[put.name] = put
        if life.group is not None and life not in self._groups.setdefault(life.group, []):
            self._groups[life.group].append(life)
        key = put.asked["drafts"][place]["key"]
        if key is not None and life not in self._keys.setdefault(key, []):
            self._keys[key].append(life)
        if key in self._vanished:
            life.came_from(*self._vanished.pop(key))
            life.guesses = life.guesses | {Guess(kind="gone")}

    def _meet(self, message: Record) -> None:
        """A message was given or listed: it must have been put, and be as it was put."""
        life = self._life(message["id"])
        if life is None:
            unseen = self._unseen.get(_text(message["payload"]), [])
            misfits = [self._misfit(message, put, put.asked["drafts"][place]) for put, place in unseen]
            if None not in misfits:
                why = "; ".join(map(str, misfits)) or "no open put has this payload"
                raise Violation(f"a message that nobody put, or whose put was undone: {message}\n{why}")
            fitting = [each for each, misfit in zip(unseen, misfits, strict=True) if misfit is None]
            life = self._born(message["id"])
            for each in fitting:  # several if a key was repeated
                unseen.remove(each)
                self._came_from(life, *each)
        if life.seen is None:
            misfits = [self._misfit(message, put, life.drafts[put.name]) for put in life.puts]
            if None not in misfits:
                raise self._violation(f"is not as it was put: {'; '.join(map(str, misfits))}", life, message)
            life.seen = message
        changed = [name for name in _UNCHANGING if life.seen[name] != message[name]]
        if changed:
            raise self._violation(f"has another {', '.join(changed)} than before", life, message)

    def _misfit(self, message: Record, put: Operation, draft: Record) -> str | None:
        """Why the message cannot be what that put made of the draft."""
        received_at = message["received_at"]
        kept = retention(draft, self._settings)
        expected = {
            "payload": draft["payload"],
            "headers": draft["headers"],
            "priority": draft["priority"],
            "group": draft.get("group"),
            "created_at": received_at if draft["created_at"] is None else draft["created_at"],
            "expires_at": received_at + kept if kept else None,
        }
        for name, value in expected.items():
            if message[name] != value:
                return f"{name} is {message[name]!r}, {put.name} put {value!r}"
        if not put.start <= received_at <= put.end:
            return f"received_at is {received_at}, {put.name} ran from {put.start} to {put.end}"
        return None

    def _check_given(self, message: Record, taken: Operation) -> None:
        """What a consumer is told of a message that it got."""
        life = self._life(message["id"])
        assert life is not None
        at, receipt = message["claimed_at"], message["receipt"]
        if not taken.start <= at <= taken.end:
            why = f"was claimed at {at}, but {taken.name} ran from {taken.start} to {taken.end}"
            raise self._violation(why, life, message)
        if taken.do == "pop":
            return
        expected = ("in_flight", taken.asked["consumer"], at + lease_of(taken, self._settings))
        if (message["state"], message["consumer"], message["lease_until"]) != expected:
            raise self._violation(f"was given to {taken.name} not as {expected}", life, message)
        if not receipt or receipt in self._owners:
            raise self._violation(f"was given with the receipt {receipt!r}, which is none or an old one", life)
        self._owners[receipt] = life

    def _check_keys(self, put: Operation) -> None:
        for draft in put.asked["drafts"]:
            lives = self._keys.get(draft["key"], [])
            for one in lives:
                for other in lives:
                    apart = max(one.received[1], other.received[1]) - min(one.received[0], other.received[0])
                    if one is not other and apart < FIVE_MINUTES:
                        why = f"and {other.id} were both put under the key {draft['key']!r}"
                        raise self._violation(why, one)

    # Event by event

    def _follow(self, event: str, operation: Operation) -> None:
        if event == "start":
            self._concern(operation)
            for life in operation.lives:
                life.open[operation.name] = operation
                life.story.append(operation.asked)
                self._track(life)
        elif event == "told":
            assert operation.told is not None
            for life in operation.lives:
                life.story.append(operation.told)
                life.answered = self._number
                if not life.answer(operation, self._latest):
                    raise self._violation(f"cannot have been so when {operation.name} was answered", life)
                self._track(life)
            if operation.do in ("claim", "pop"):
                self._check_order(operation)
                self._check_groups(operation)

    def _concern(self, operation: Operation) -> None:
        """Find the messages that the operation may have changed."""
        if operation.do == "put":
            return  # known since the messages are
        names: Iterable[str] = ()
        if _may_concern_any(operation):
            names = list(self._lives)
        elif operation.do in ("claim", "pop"):
            assert operation.told is not None
            names = [message["id"] for message in operation.told["messages"]]
            if len(set(names)) < len(names) or len(names) > operation.asked["n"]:
                raise Violation(f"{operation.name} was given too many, or one twice: {operation.told}")
        elif operation.do in SETTLING:
            names = self._concern_receipts(operation)
        else:
            names = dict.fromkeys(operation.asked["ids"])
        operation.lives += [life for name in names if (life := self._life(name)) is not None]

    def _concern_receipts(self, operation: Operation) -> list[str]:
        receipts = set(operation.asked["receipts"])
        if operation.told is not None:
            forged = receipts - self._owners.keys() - set(operation.told["lost"])
            invented = set(operation.told["lost"]) - receipts
            if forged or invented:
                raise Violation(f"{operation.name} accepted {forged} that nobody was given, or lost {invented}")
        operation.asked["ids"] = {each: self._owners[each].id for each in receipts if each in self._owners}
        return sorted(set(operation.asked["ids"].values()))

    def _track(self, life: Life) -> None:
        """Keep the list of what can be claimed for certain."""
        certain = not life.open and all(guess.kind == "waiting" for guess in life.guesses)
        if certain == (life.available_since is not None):
            return
        entry = (life.priority, life.place, life.id)
        if certain:
            life.available_since = self._number
            insort(self._available, entry)
        else:
            life.available_since = None
            del self._available[bisect_left(self._available, entry)]

    def _check_order(self, taken: Operation) -> None:
        """Nothing that could be claimed the whole time was passed over."""
        assert taken.told is not None
        given = taken.lives
        for one, other in pairwise(given):
            if _precedes(other, one):
                raise self._violation(f"was given to {taken.name} after {one.id}", other)
        is_short = len(given) < taken.asked["n"]
        last = max(((life.priority, life.place) for life in given), default=(0, (0, 0)))
        for priority, place, name in self._available:
            if (priority, place) > last and not is_short:
                break
            life = self._lives[name]
            assert life.available_since is not None
            if (
                life.available_since > taken.begun
                or any(guess.last > taken.start for guess in life.guesses)
                or life.expires[0] <= self._latest
                or not self._was_head(life, taken)
                or self._may_have_been_in_hand(life, taken)
            ):
                continue
            if is_short:
                raise self._violation(f"was available, but {taken.name} got {len(given)} messages", life)
            for other in given:
                if _precedes(life, other):
                    raise self._violation(f"was available, but {taken.name} got {other.id}", life)

    def _may_have_been_in_hand(self, life: Life, taken: Operation) -> bool:
        """Whether another claim may have hidden it from this one, and then have lost it to a removal."""
        if self._prompt:
            return False
        operations = self._operations.values()
        removals = [each for each in operations if each.do == "purge" or _removes(each, life)]
        return any(
            removal.begun < other.ended and removal.ended > taken.ended
            for other in operations
            if other is not taken and other.do in ("claim", "pop")
            if other.begun < taken.ended and other.ended > taken.begun
            for removal in removals
        )

    def _members(self, group: str | None) -> list[Life]:
        """The messages of a group that may be there."""
        members = self._groups.get(group, []) if group is not None else []
        return [life for life in members if life.id in self._lives]

    def _was_head(self, life: Life, taken: Operation) -> bool:
        """Whether its group certainly let it be claimed the whole time."""
        unseen = [put.asked["drafts"][place] for each in self._unseen.values() for put, place in each]
        if life.group is not None and life.group in [draft.get("group") for draft in unseen]:
            return False
        return all(
            other is life
            or other.has_kept_still(taken.begun, ("done", "failed", "gone", "absent"))
            or (life.is_before(other) and other.has_kept_still(taken.begun, ("waiting",)))
            for other in self._members(life.group)
        )

    def _check_groups(self, taken: Operation) -> None:
        """Of a group only the first was given, and none while another was in flight."""
        given = Counter(life.group for life in taken.lives if life.group is not None)
        for life in taken.lives:
            if life.group is not None and given[life.group] > 1:
                raise self._violation(f"was given to {taken.name} with another of its group", life)
            for other in self._members(life.group):
                if other is life or other.expires[0] <= self._latest:
                    continue
                held = other.has_kept_still(taken.begun, ("held",))
                if held and all(guess.first > self._latest for guess in other.guesses):
                    why = f"was given to {taken.name} while {other.id} of its group was in flight"
                    raise self._violation(why, life)
                if other.is_before(life) and other.has_kept_still(taken.begun, ("waiting",)):
                    raise self._violation(f"was given to {taken.name} before {other.id} of its group", life)

    # A listing

    def _show(self, event: Record) -> None:
        start, end = event["at"], max(self._latest, event["until"])
        self._latest = end
        listed = {message["id"]: message for message in event["messages"]}
        self._check_listing(event, listed)
        if event["reopened"]:
            self._settle_unseen(start, end)
        for life in list(self._lives.values()):
            message = listed.get(life.id)
            life.story.append({"event": "shown", "at": start, "message": message})
            if not life.show(message, start, end):
                raise self._violation("cannot be so in this listing", life, message)
        if event["reopened"]:
            self._check_unanswered()
        for life in list(self._lives.values()):
            if event["reopened"]:
                life.forget_open()
            self._track(life)
            if life.is_over:
                self._over[life.id] = self._lives.pop(life.id)

    def _check_listing(self, event: Record, listed: dict[str, Record]) -> None:
        messages = event["messages"]
        if len(listed) < len(messages):
            raise Violation(
                f"a message is listed twice: {Counter(each['id'] for each in messages).most_common(3)}"
            )
        states = Counter(message["state"] for message in messages)
        counts = {state: count for state, count in event.get("counts", states).items() if count}
        if counts != dict(states):
            raise Violation(f"the counts are {counts}, listed are {dict(states)}")
        held = Counter(each["group"] for each in messages if each["state"] == "in_flight" and each["group"])
        if any(count > 1 for count in held.values()):
            raise Violation(f"several messages of a group are in flight: {held.most_common(3)}")
        latest: Life | None = None  # of those so far, the one whose put began last
        for name in listed:
            life = self._life(name)
            assert life is not None
            if latest is not None and life.is_before(latest):
                raise self._violation(f"is listed after {latest.id}, but was put before it", life)
            if latest is None or life.begun > latest.begun:
                latest = life

    def _settle_unseen(self, start: int, end: int) -> None:
        """What was put without an answer and is not there either never was, or went before it was ever seen."""
        for unseen in self._unseen.values():
            for put, place in unseen:
                draft = put.asked["drafts"][place]
                if draft["key"] in self._keys:
                    continue  # it was there before
                put.end = min(put.end, end)
                life = self._born(f"(never seen, payload {draft['payload']!r})", put.begun)
                life.came_from(put, place)
                life.open[put.name] = put
                may_have_gone = life.show(None, start, end, put.name)
                if may_have_gone and draft["key"] is not None:
                    self._vanished[draft["key"]] = (put, place)
                is_part = any(other.puts == [put] for other in put.lives)
                if is_part and not may_have_gone:
                    raise self._violation("is missing, but others of the same batch are there", life)
                if not is_part:
                    del self._lives[life.id]

    def _check_unanswered(self) -> None:
        """No unanswered claim or pop explains what happened to more messages than it asked for."""
        explained: dict[str, list[Life]] = {}
        for life in self._lives.values():
            options = [
                {name for name in guess.applied if self._operations[name].limit is not None}
                for guess in life.guesses
            ]
            if all(options) and not self._assign(life, set().union(*options), explained, set()):
                why = "needs an unanswered claim or pop to explain it, but those explain other messages already"
                raise self._violation(why, life)

    def _assign(self, life: Life, names: set[str], explained: dict[str, list[Life]], tried: set[str]) -> bool:
        """Find an operation for each message, moving others to another of theirs where needed."""
        for name in names - tried:
            tried.add(name)
            others = explained.setdefault(name, [])
            limit = self._operations[name].limit
            assert limit is not None
            if len(others) < limit:
                others.append(life)
                return True
            for other in others:
                theirs = set().union(*(guess.applied for guess in other.guesses))
                theirs = {each for each in theirs if self._operations[each].limit is not None}
                if self._assign(other, theirs, explained, tried):
                    others.remove(other)
                    others.append(life)
                    return True
        return False

    def _violation(self, why: str, life: Life, message: Record | None = None) -> Violation:
        lines = [f"message {life.id} {why}"]
        if message is not None:
            lines.append(f"it is shown as {message}")
        lines.append("its story:")
        lines += [f"  {_line(event, life)}" for event in life.story]
        lines.append("what it may have been before:")
        lines += [f"  {guess}" for guess in sorted(life.guesses, key=str)]
        lines += [f"open: {_line(operation.asked, life)}" for operation in life.open.values()]
        return Violation("\n".join(lines))


def _may_concern_any(operation: Operation) -> bool:
    if operation.refused:
        return False
    if operation.do in ("claim", "pop"):
        return operation.told is None
    return operation.do == "purge" or (operation.do == "redrive" and not operation.asked["ids"])


def _removes(operation: Operation, life: Life) -> bool:
    return operation.do == "remove" and life.id in operation.asked["ids"]


def _precedes(one: Life, other: Life) -> bool:
    """Whether it certainly has to be claimed before another."""
    return one.priority < other.priority or (one.priority == other.priority and one.is_before(other))


def _text(payload: object) -> str:
    return json.dumps(payload)


def _line(event: Record, life: Life) -> str:
    """An event as far as it concerns a message."""
    shown = {name: value for name, value in event.items() if name not in ("event", "op", "at", "do")}
    if "messages" in shown:
        shown["messages"] = [message for message in shown["messages"] if message["id"] == life.id]
    if "drafts" in shown and len(shown["drafts"]) > 1:
        shown["drafts"] = f"{len(shown['drafts'])}, of them {life.drafts.get(event['op'])}"
    if len(shown.get("ids", ())) > 1:
        shown["ids"] = f"{len(shown['ids'])}"
    return f"{event['at']} {event.get('op', '')} {event.get('do', '')} {event['event']} {shown}"
