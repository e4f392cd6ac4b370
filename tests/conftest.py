"""What holds for all tests."""

import signal
from collections.abc import Iterator

import pytest

from tests.scripted import reserved_port

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them every process they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def port() -> Iterator[int]:
    """One at which nobody listens, unless a test does."""
    with reserved_port() as port:
        yield port
