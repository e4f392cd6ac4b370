"""What holds for all tests."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.scripted import reserved_port

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that takes its time, or takes long to be made, says something about the machine and nothing about us.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture
def port() -> Iterator[int]:
    """One at which nobody listens, unless a test does."""
    with reserved_port() as port:
        yield port
