"""Operations as data: what follows from a declaration."""

from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import pytest

from penstock.contract.arguments import QueueName, a_whole
from penstock.contract.operation import Operation, operation
from penstock.contract.operations import DONE, Claim, Queues
from penstock.contract.roles import READ


def declared() -> type[Operation[None]]:
    @operation("GET /things/{queue}", "look", role=READ, answer=DONE, errors=("QueueNotFound",))
    class Look(Operation[None]):
        """Look at a thing.

        For as long
        as it takes.
        """

        queue: QueueName
        n: Annotated[int, a_whole("How many.", 1, 10, most=5)] = 1
        never_sent: int = 0

    return Look


def test_everything_follows_from_the_declaration_when_it_is_first_asked_for() -> None:
    kind = declared()
    assert (kind.http.method, kind.http.path, kind.http.in_path) == ("GET", "/things/{queue}", ["queue"])
    assert (kind.http.summary, kind.http.description) == ("Look at a thing", "For as long as it takes.")
    assert (kind.http.name, kind.http.tag, kind.http.errors) == ("look", "Messages", ("QueueNotFound",))
    assert list(kind.arguments) == list(kind.wires) == ["queue", "n"]
    assert (set(kind.required), list(kind.others), list(kind.limits)) == ({"queue"}, ["n"], [("n", 5)])
    assert (kind.default("n"), kind.default("queue")) == (1, None)


def test_an_operation_has_its_arguments_and_no_others() -> None:
    asked = Claim("jobs", lease=5)
    assert (asked.n, asked.lease, asked.wait, repr(Queues())) == (1, 5, 0, "Queues()")
    assert (asked.changed(wait=3).wait, asked.changed(wait=3).lease, asked.wait) == (3, 5, 0)
    assert Claim("jobs", 1_000_000).within_limits().n == 100_000
    for wrong in (lambda: Claim(), lambda: Claim("jobs", many=1), lambda: Queues("jobs")):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            wrong()


def test_threads_may_be_the_first_to_ask_at_the_same_time() -> None:
    class Backend:
        def look(self, *arguments: object) -> tuple[object, ...]:
            return arguments

    with ThreadPoolExecutor(8) as threads:
        for _ in range(100):
            kind = declared()
            asked = list(threads.map(lambda number: kind("jobs", number).call(Backend()), range(8)))  # noqa: B023
            assert asked == [("jobs", number, 0) for number in range(8)]
