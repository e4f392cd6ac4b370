"""Queue names: everything that is legal works, everything else is refused."""

import pytest

from penstock import InvalidName, Store

pytestmark = pytest.mark.many_queues
LEGAL = [chr(code) for code in range(33, 127)]


@pytest.mark.parametrize(
    "name",
    ["".join(LEGAL), "x" * 255, "%" * 255, "..", "../../etc/passwd", "a/b", "/", "./a", "~", ".penstock",
     "a.b", "CON", "nul", "a+b", "q~~1", "%2e%2e", "-", "--help"],
)  # fmt: skip
def test_a_legal_name_is_a_queue(store: Store, name: str) -> None:
    check_queue(store, name)


def test_each_legal_character_is_a_queue(store: Store) -> None:
    for name in LEGAL:
        check_queue(store, name)


def check_queue(store: Store, name: str) -> None:
    queue = store.create(name)
    queue.put(name)
    assert queue.name == store.queue(name).name == name
    assert [info.name for info in store.queues()] == sorted(["default", name])
    message = store.queue(name).pop()
    assert message is not None
    assert (message.payload, message.queue) == (name.encode(), name)
    store.delete(name)
    assert [info.name for info in store.queues()] == ["default"]


@pytest.mark.parametrize(
    ("one", "other"), [("a", "A"), ("jobs", "Jobs"), ("a/b", "a%2Fb"), ("a", "a."), ("x" * 254, "x" * 255)]
)
def test_names_that_file_systems_confuse_stay_two_queues(store: Store, one: str, other: str) -> None:
    store.create(one).put(b"1")
    store.create(other).put(b"2")
    first, second = store.queue(one).pop(), store.queue(other).pop()
    assert first is not None
    assert second is not None
    assert (first.payload, second.payload) == (b"1", b"2")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a b", "has ' ' at position 1"),
        ("tab\t", "has '\\\\t' at position 3"),
        ("\x00", "position 0"),
        ("\x7f", "position 0"),
        ("größe", "has 'ö' at position 2"),
        ("line\n", "position 4"),
        ("x" * 256, "256 characters; the most is 255"),
    ],
)
def test_an_illegal_name_is_refused_everywhere(store: Store, name: str, advice: str) -> None:
    for operation in (store.create, store.queue, store.delete):
        with pytest.raises(InvalidName, match=advice):
            operation(name)


def test_a_name_that_is_no_text_is_a_type_error(store: Store) -> None:
    with pytest.raises(TypeError, match="a queue name is a str, not int"):
        store.create(7)  # type: ignore[arg-type]
