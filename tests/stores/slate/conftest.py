from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import SimulatedClock
from tests.stores.slate.servers import S3, environment


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    server = S3()
    yield server
    server.stop()


@pytest.fixture
def bucket(s3: S3) -> Iterator[str]:
    """The URL of a store in a bucket of its own, for who has the server's variables."""
    with environment(s3.variables()):
        yield f"slate:s3://{s3.new_bucket()}/queues"


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store in a folder, or in a bucket."""
    if request.param == "folder":
        return f"slate:{tmp_path / 'store'}"
    bucket: str = request.getfixturevalue("bucket")
    return bucket


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()
