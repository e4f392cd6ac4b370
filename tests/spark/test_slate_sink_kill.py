"""kill -9 in the middle of a streaming sink's batch into a slate store: it lands once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from tests.spark.test_stream_sink import payloads, texts, write

ROOT = Path(__file__).parents[2]

# Has the store open, and is killed when the second batch counts, or when it was taken in and nobody was told.
OWNER = """
import os, signal, sys, penstock
store = penstock.open(sys.argv[1])
intake = store.backend.owned.loads
take_in, batches = intake.commit, 0

def die(*ignored):
    os.kill(os.getpid(), signal.SIGKILL)

def counted(load):
    global batches
    batches += 1
    if batches == 2 and sys.argv[2] == "counts":
        intake._put = die
    taken = take_in(load)
    if batches == 2:
        die()
    return taken

store.backend.owned.owner().take_in = counted
print("open", flush=True)
sys.stdin.read()
"""

DRIVER = """
import sys, penstock.spark
from pathlib import Path
from tests.spark.test_stream_sink import write
spark = penstock.spark.session("local[2]")
print("java", spark.sparkContext._gateway.proc.pid, flush=True)
write(spark, Path(sys.argv[2]), sys.argv[1], Path(sys.argv[3]))
"""


@pytest.mark.parametrize("point", ["counts", "taken in"])
def test_the_owner_of_the_store_may_be_killed(spark: SparkSession, tmp_path: Path, point: str) -> None:
    url, source = f"slate:{tmp_path / 'store'}", texts(tmp_path / "texts", 1, 4)
    with penstock.open(url) as store:
        store.create("out")
    command = [sys.executable, "-c", OWNER, url, point]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        write(spark, source, url, tmp_path / "checkpoint")
        assert owner.wait() == -signal.SIGKILL
    with penstock.open(url) as store:
        assert payloads(store) == [f"{number}{letter}" for number in range(1, 5) for letter in "ab"]


@pytest.mark.long
def test_drivers_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    """Twelve of them, one after the other, each at a moment of its own. Seeds are printed."""
    url, source = f"slate:{tmp_path / 'store'}", tmp_path / "texts"
    with penstock.open(url) as store:
        store.create("out")
    command = [sys.executable, "-c", DRIVER, url, str(source), str(tmp_path / "checkpoint")]
    for seed in range(12):
        sys.stdout.write(f"seed {seed}\n")
        texts(source, 10 * seed, 10 * seed + 9)
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as child:
            assert child.stdout is not None
            java = int(child.stdout.readline().split()[1])
            time.sleep(random.Random(seed).uniform(3, 15))
            for process in (java, child.pid):
                os.kill(process, signal.SIGKILL)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        assert child.wait() == 0
    with penstock.open(url) as store:
        expected = [f"{number}{letter}" for number in range(120) for letter in "ab"]
        assert Counter(payloads(store)) == Counter(expected)
