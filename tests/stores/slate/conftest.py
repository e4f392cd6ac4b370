from collections.abc import Iterator

import pytest

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
