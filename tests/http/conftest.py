"""Fixtures of the HTTP tests."""

import pytest


@pytest.fixture(params=["sync", "aio"])
def client(request: pytest.FixtureRequest) -> str:
    """The kind of client: both keep to the same rules."""
    kind: str = request.param
    return kind
