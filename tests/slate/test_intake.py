"""Loads that the owner of a slate store takes in: batches of a streaming sink land once, whatever interrupts."""

import os
from pathlib import Path

import pytest

import penstock
from penstock.landing import Landing
from penstock.message import Entry
from penstock.slate.intake import Frame, Load, _Progress
from penstock.slate.opening import open_slate
from penstock.slate.staging import new_name
from penstock.slate.store import SlateKeeper
from penstock.wire.frames import encode_entries


def staged(keeper: SlateKeeper, sink: Landing | None = None, run: str | None = None) -> Load:
    """A load of two messages, in frames of their own."""
    name = new_name(os.getpid())
    for number in range(2):
        keeper.intake._staging.put(name, f"frame-{number}", encode_entries([Entry(b"x")]))
    return Load(name, [Frame("default", f"frame-{number}", 1, 1) for number in range(2)], {}, run, sink)


def waiting(keeper: SlateKeeper) -> int:
    return keeper.counts("default")["available"]


def test_a_batch_lands_once_and_a_new_query_must_say_that_it_is_one(tmp_path: Path) -> None:
    keeper = open_slate(f"slate:{tmp_path}")
    assert keeper.intake.take_in(staged(keeper, Landing("s", "q", 4)))
    assert not keeper.intake.take_in(staged(keeper, Landing("s", "q", 4)))
    assert not keeper.intake.take_in(staged(keeper, Landing("s", "q", 3)))
    with pytest.raises(penstock.StreamMismatch, match="of a new query"):
        keeper.intake.take_in(staged(keeper, Landing("s", "another", 4)))
    assert waiting(keeper) == 2
    assert keeper.intake.take_in(staged(keeper, Landing("s", "another", 5)))
    assert keeper.intake.take_in(staged(keeper, Landing("t", "q", 4)))
    keeper.close()
    keeper = open_slate(f"slate:{tmp_path}")
    assert not keeper.intake.take_in(staged(keeper, Landing("s", "another", 5)))
    assert waiting(keeper) == 6
    keeper.close()


def test_a_batch_that_a_crash_interrupted_has_landed_when_the_store_is_open_again(tmp_path: Path) -> None:
    keeper = open_slate(f"slate:{tmp_path}")
    load = staged(keeper, Landing("s", "q", 1))
    keeper._writer.lead(lambda: keeper._writer.write_now([_Progress(load, 0).row]))
    keeper.close()
    keeper = open_slate(f"slate:{tmp_path}")
    assert waiting(keeper) == 2
    assert not keeper.intake.take_in(staged(keeper, Landing("s", "q", 1)))
    assert waiting(keeper) == 2
    keeper.close()


@pytest.mark.parametrize("what", [{"sink": Landing("s", "q", 1)}, {"run": "nightly"}])
def test_what_an_error_interrupted_is_finished_before_the_same_comes_under_another_name(
    tmp_path: Path, what: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = open_slate(f"slate:{tmp_path}")
    get, failing = keeper.intake._staging.get, [True]

    def unreachable(load: str, name: str) -> bytes:
        if failing and failing.pop():
            raise penstock.StoreUnreachable("not now")
        return get(load, name)

    monkeypatch.setattr(keeper.intake._staging, "get", unreachable)
    with pytest.raises(penstock.StoreUnreachable):
        keeper.intake.take_in(staged(keeper, **what))  # type: ignore[arg-type]
    assert not keeper.intake.take_in(staged(keeper, **what))  # type: ignore[arg-type]
    assert waiting(keeper) == 2
    assert keeper.intake._staging.loads() == []
    keeper.close()
