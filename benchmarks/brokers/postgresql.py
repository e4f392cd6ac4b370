"""PostgreSQL as a queue: a table, SELECT ... FOR UPDATE SKIP LOCKED to claim, DELETE to acknowledge.

Every statement is a transaction of its own, and synchronous_commit is on. Statements are prepared once per
connection and their values are binary. A consumer that waits listens to a channel, which producers notify only if
they are told to: notifications make commits wait for each other.
"""

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.brokers.connection import HOST, Claimed, Connection, Refused
from benchmarks.brokers.process import STARTING, Broker

TABLE = """
CREATE TABLE job (id bigserial PRIMARY KEY, lease timestamptz, body bytea NOT NULL);
CREATE INDEX ON job (id) WHERE lease IS NULL;
"""

_CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM job WHERE lease IS NULL ORDER BY id LIMIT $1::int8 FOR UPDATE SKIP LOCKED
)
UPDATE job SET lease = now() + interval '1 minute' FROM picked WHERE job.id = picked.id RETURNING job.id, job.body
"""

STATEMENTS = {
    b"put": b"INSERT INTO job (body) VALUES ($1)",
    b"put_and_ring": b"WITH i AS (INSERT INTO job (body) VALUES ($1)) SELECT pg_notify('job', '')",
    b"put_many": b"INSERT INTO job (body) SELECT unnest($1::bytea[])",
    b"claim": _CLAIM.encode(),
    b"ack": b"DELETE FROM job WHERE id = $1",
    b"ack_many": b"DELETE FROM job WHERE id = ANY ($1::int8[])",
}

BYTEA, INT8 = 17, 20  # types, by number
Row = list[bytes]


class Reply(NamedTuple):
    """What came until the server was ready for the next request."""

    rows: list[Row]
    rung: bool  # a notification came meanwhile, and will not come again


class PostgresConnection(Connection):
    """Version 3 of the protocol, the user `postgres` without a password."""

    async def greet(self) -> None:
        who = struct.pack(">I", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
        await self.link.ask(struct.pack(">I", len(who) + 4) + who, _reply)
        for name, statement in STATEMENTS.items():
            self.link.write(_message(b"P", name + b"\0" + statement + b"\0\0\0"))
        await self.link.ask(_message(b"S"), _reply)
        if self.holds and self.rings:
            await self.link.ask(_message(b"Q", b"LISTEN job\0"), _reply)

    async def _run(self, statement: bytes, value: bytes) -> Reply:
        # One parameter, binary like the results.
        bind = b"\0" + statement + struct.pack(">xHHHI", 1, 1, 1, len(value)) + value + struct.pack(">HH", 1, 1)
        return await self.link.ask(_message(b"B", bind) + _message(b"E", b"\0\0\0\0\0") + _message(b"S"), _reply)

    async def put(self, body: bytes) -> None:
        await self._run(b"put_and_ring" if self.rings else b"put", body)

    async def put_many(self, bodies: Sequence[bytes]) -> None:
        await self._run(b"put_many", _array(BYTEA, bodies))

    async def claim(self, wait: int = 0) -> Claimed | None:
        while True:
            reply = await self._run(b"claim", struct.pack(">q", 1))
            if reply.rows or not wait:
                return (reply.rows[0][0], reply.rows[0][1]) if reply.rows else None
            if not reply.rung:
                await self.link.read(_bell)  # waits for as long as it takes

    async def claim_many(self, count: int) -> list[Claimed]:
        reply = await self._run(b"claim", struct.pack(">q", count))
        return [(token, body) for token, body in reply.rows]

    async def ack(self, token: bytes) -> None:
        await self._run(b"ack", token)

    async def ack_many(self, tokens: Sequence[bytes]) -> None:
        await self._run(b"ack_many", _array(INT8, tokens))


def _message(kind: bytes, payload: bytes = b"") -> bytes:
    return kind + struct.pack(">I", len(payload) + 4) + payload


def _array(kind: int, values: Sequence[bytes]) -> bytes:
    head = struct.pack(">IIIII", 1, 0, kind, len(values), 1)  # one dimension, no nulls, counted from 1
    return head + b"".join([struct.pack(">I", len(value)) + value for value in values])


def _reply(received: bytearray) -> tuple[Reply, int] | None:
    rows, rung, at = list[Row](), False, 0
    while len(received) >= at + 5:
        kind, length = struct.unpack_from(">cI", received, at)
        start, at = at + 5, at + 1 + length
        if len(received) < at:
            return None
        if kind == b"D":
            rows.append(_row(received, start))
        elif kind == b"A":
            rung = True
        elif kind == b"E":
            raise Refused(bytes(received[start:at]).replace(b"\0", b" ").decode(errors="replace"))
        elif kind == b"Z":
            return Reply(rows, rung), at
    return None


def _row(received: bytearray, at: int) -> Row:
    (count,), at = struct.unpack_from(">H", received, at), at + 2
    row = []
    for _ in range(count):
        (length,) = struct.unpack_from(">I", received, at)
        start, at = at + 4, at + 4 + length
        row.append(bytes(received[start:at]))
    return row


def _bell(received: bytearray) -> tuple[None, int] | None:
    """A notification."""
    if len(received) < 5:
        return None
    kind, length = struct.unpack_from(">cI", received)
    if kind != b"A":
        raise Refused(f"not a notification: {bytes(received[:40])!r}")
    return (None, 1 + length) if len(received) > length else None


class PostgreSQL(Broker):
    """A cluster of its own. It refuses to be run by root; then the user of its package runs it."""

    name, package, connection = "PostgreSQL", "postgresql", PostgresConnection
    stop_signal = signal.SIGINT  # which does not wait for connections

    @classmethod
    def program(cls) -> str | None:
        """Debian keeps every version beside the path."""
        found = Path("/usr/lib/postgresql").glob("*/bin/postgres")
        newest = max(found, key=lambda path: float(path.parts[-3]), default=None)
        return str(newest) if newest else shutil.which("postgres")

    def start(self) -> None:
        if os.geteuid() == 0:
            self.user = "postgres"
            shutil.chown(self.folder, self.user)
            self.folder.parent.chmod(0o711)  # a temporary folder is closed to other users
        data = self.folder / "data"
        self._call("initdb", "-D", data, "-A", "trust", "-U", "postgres")
        settings = ("max_connections=100", "synchronous_commit=on", "fsync=on")
        options = [part for setting in settings for part in ("-c", setting)]
        listen = ("-h", HOST, "-p", str(self.port), "-k", self.folder)
        self.spawn(self._beside("postgres"), "-D", data, *listen, *options)
        self.await_ready()
        self._sql(TABLE)

    def ready(self) -> bool:
        """It accepts connections before it accepts who connects."""
        asked = subprocess.run(
            [self._beside("pg_isready"), "-q", "-h", HOST, "-p", str(self.port)],
            check=False,
        )
        return asked.returncode == 0

    def settle(self) -> None:
        """What autovacuum would do within a minute."""
        self._sql("VACUUM ANALYZE job")

    def _sql(self, statements: str) -> None:
        self._call("psql", "-q", "-h", HOST, "-p", str(self.port), "-U", "postgres", "-c", statements)

    def _call(self, program: str, *arguments: str | Path) -> None:
        """Spawn, and wait for the end of it."""
        self.spawn(self._beside(program), *arguments)
        if self.processes.pop().wait(STARTING):
            raise RuntimeError(f"{program} failed: {self.last_words()}")

    def _beside(self, program: str) -> Path:
        return Path(self.program() or self.package).with_name(program)
