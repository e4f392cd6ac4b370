"""Fixtures of the HTTP tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.http.server import Limits
from tests.http.victim import Serve, Victim


@pytest.fixture(params=["sync", "aio"])
def client(request: pytest.FixtureRequest) -> str:
    """The kind of client: both keep to the same rules."""
    kind: str = request.param
    return kind


@pytest.fixture
def serve(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Serve]:
    """Serves one store, with limits if a test wants to run into them."""
    victims: list[Victim] = []

    def serve(limits: Limits | None = None) -> Victim:
        victims.append(Victim(store, limits))
        return victims[-1]

    with penstock.open(tmp_path / "secret-place") as store:
        store.create("jobs")
        try:
            yield serve
            for victim in victims:
                victim.check(tmp_path)
            assert caplog.records == []
        finally:
            for victim in victims:
                victim.running.stop()
                for client in victim.clients:
                    client.close()


@pytest.fixture
def victim(serve: Serve) -> Victim:
    return serve(None)


@pytest.fixture
def jobs(victim: Victim) -> penstock.Queue:
    return victim.store.queue("jobs")
