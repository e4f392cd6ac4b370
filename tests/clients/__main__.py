"""Run every client of SQS, and write what each one did into docs/sqs-clients.md: `python -m tests.clients`."""

import os
import sys
from pathlib import Path

import pytest

from tests.clients.table import WRITE

if __name__ == "__main__":
    os.environ[WRITE] = "1"
    sys.exit(pytest.main([str(Path(__file__).parent), "-m", "", *sys.argv[1:]]))
