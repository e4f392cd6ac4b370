"""The owner's side: a socket that listens from when the store is opened, and a thread that answers.

Most stores are used by one process. So nothing that serves is loaded before somebody connects: until then a thread
waits for that, and costs nothing.
"""

import os
import select
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from penstock.system import socket_path as place

if TYPE_CHECKING:
    from penstock.sharing.serving import Serving
    from penstock.stores.journal.store import JournalBackend
    from penstock.stores.slate.store import SlateBackend


SETTLED = 0.5  # seconds after which a guest is one that stays, and may be the next owner


def prepare() -> None:
    """Load what serves, so that taking over takes no longer than it must."""
    import_module("penstock.sharing.serving")
    from penstock.http.server.running import new_loop

    new_loop().close()  # which loads what is fastest


class Host:
    """Answers other processes of this user, from start() until stop()."""

    def __init__(self, share: str) -> None:
        self._share = share
        self._listening = place.bind(share)  # from here on others wait for an answer
        self._waking, self._wake = os.pipe()
        self._serving: Serving | None = None
        self._thread: threading.Thread | None = None
        self._gone = False

    def start(self, backend: "JournalBackend | SlateBackend") -> None:
        """Begin to answer."""
        self._thread = threading.Thread(target=self._run, args=(backend,), name="penstock-share", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests, finish those that have arrived, and go."""
        place.remove(self._share)
        if self._thread is not None:
            os.write(self._wake, b".")
            self._thread.join()
        self._let_go()

    def forked(self) -> None:
        """In a child: let go of everything, so that others notice when the parent has ended."""
        if self._gone:
            return
        held = [self._listening.fileno(), self._waking, self._wake]
        if self._serving is not None:
            held += self._serving.connections()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in filter(lambda number: number >= 0, held):
            # Its number stays taken, as objects of the parent that are here as well will close it.
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def _let_go(self) -> None:
        self._gone = True
        self._listening.close()
        for descriptor in (self._waking, self._wake):
            os.close(descriptor)

    def _run(self, backend: "JournalBackend | SlateBackend") -> None:
        poll = select.poll()
        for descriptor in (self._listening.fileno(), self._waking):
            poll.register(descriptor, select.POLLIN)
        poll.poll()
        if place.has_visitors(self._listening):  # also if it is to stop: who has come is answered
            from penstock.sharing.serving import Serving  # here, because it takes long and few need it

            self._serving = Serving(backend, self._listening, self._waking)
            self._serving.run()
