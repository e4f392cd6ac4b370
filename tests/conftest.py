"""Signals, Hypothesis profile and fixtures for all tests."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.scripted import reserved_port

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A slow example is the machine's fault, not Penstock's.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that no other program listens on."""
    with reserved_port() as port:
        yield port
