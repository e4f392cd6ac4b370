"""`penstock route` without --once: it goes on until it is told to stop, and ends as it should."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import penstock


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_what_is_published_later_is_delivered_until_a_signal_comes(tmp_path: Path, how: signal.Signals) -> None:
    url = f"slate:{tmp_path / 'store'}?router=off"
    with penstock.open(url) as store:
        wanted = store.create("wanted", filter="kind = 'wanted'")
        command = [sys.executable, "-m", "penstock", "--store", url, "route", "--master", "local[2]", "--json"]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            for turn in range(3):
                for number in range(5):
                    store.publish(f"{turn} {number}", headers={"kind": "wanted"})
                    store.publish(b"other", headers={"kind": "other"})
                for number in range(5):
                    [message] = wanted.claim(wait=300)
                    assert message.payload == f"{turn} {number}".encode()
                    message.ack()
            if how == signal.SIGINT:
                os.killpg(child.pid, how)  # as a terminal does: Spark's processes hear it as well
            else:
                child.send_signal(how)
            said, errors = child.communicate()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        assert child.returncode == 0, errors
        assert json.loads(said)["rows"] == [{"queue": "wanted", "routed": 15}], said
        store.publish(b"afterwards", headers={"kind": "wanted"})
        assert wanted.claim() == []
        assert [info.lag for info in store.queues() if info.name == "wanted"] == [1]
