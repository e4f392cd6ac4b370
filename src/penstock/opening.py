"""From a URL to a store."""

import os
from typing import TYPE_CHECKING

from penstock.contract.kinds import Options, kind_of
from penstock.contract.store import Store
from penstock.system.clock import Clock

if TYPE_CHECKING:
    from penstock.stores.journal.format import Dialect


def open(  # noqa: A001
    url: str | os.PathLike[str],
    *,
    sync: str = "always",
    clock: Clock | None = None,
    dialect: "Dialect" = "doc",
    timeout: float | None = None,
    peers: int = 0,
    token: str | None = None,
    ca: str | None = None,
    share: bool = True,
) -> Store:
    """Open a store.

    url: a folder, or `journal:DIR`, for a store on disk, which is made if it is not there; `text:DIR` for one of
        text files that people read and edit, `NAME.tq` for one such file; `folder:DIR` for one with a file per
        message (many processes may open these at once); `memory:` for a new store in memory, `memory:NAME` for one
        that this process shares by name; `slate:DIR` or `slate:s3://bucket/prefix` for one in SlateDB, on disk or
        in a bucket (as AWS_ENDPOINT, AWS_ACCESS_KEY_ID and the like say); `http://host:port` or
        `https://host:port` for one that a server keeps (`penstock serve`)
    sync: when a change counts as stored: "always" before the call returns; "interval" and "never" trade safety
        for speed, where a store has a disk to sync
    dialect: of the journal store: "2.x" writes what a real Kestrel 2.x can take back
    clock: where the store gets its time from; a `penstock.SimulatedClock` lets tests move it
    peers: of the folder store: how many processes fetch from its queues beside this one; with some, each chooses
        at random among the first messages, so that they seldom go for the same
    token: of a server: the secret that `penstock token create` printed; otherwise that of $PENSTOCK_TOKEN
    ca: of an https server: a file with the certificates to trust (PEM); otherwise those of the system, or of
        $SSL_CERT_FILE
    timeout: of a server: the seconds that an answer may take, beyond the time that it was asked to wait; 60. Of a
        folder that another process has open: the same, and how long its owner is looked for if none answers; 10.
        Of a slate store: the seconds that its disk or its bucket may take for a change; 30
    share: of a folder: serve the store to other processes of this user that open it while this one has it; with
        False they get StoreLocked
    """
    url = os.fspath(url)
    options = Options(sync=sync, clock=clock, dialect=dialect, timeout=timeout, peers=peers, token=token, ca=ca)
    options.check_sync()
    kind = kind_of(url)
    kind.check(url, options)
    if not (kind.owned and share):
        return Store(url, kind.open(url, options))
    from penstock.sharing.backend import open_shared  # here, so that import penstock stays quick

    return Store(url, open_shared(url, options))
