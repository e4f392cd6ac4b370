"""Refusals that every kind of store has, with advice for each caller: Python, the command line, HTTP."""

import shlex

from penstock.errors import Advice, QueueExists, QueueFull, QueueNotFound, QueueProtected


def not_found(queue: str) -> QueueNotFound:
    """The error for a queue that does not exist."""
    word, path = _word_and_path(queue)
    return QueueNotFound(
        f"there is no queue {queue!r}",
        Advice(
            f"create it with store.create({queue!r})",
            f"`penstock create {word}` creates it, `penstock list` shows the queues there are",
            f"create it with PUT {path}; GET /-/api/queues lists the queues there are",
        ),
    )


def exists_already(queue: str) -> QueueExists:
    """The error for a new queue whose name is taken."""
    word, path = _word_and_path(queue)
    return QueueExists(
        f"queue {queue!r} exists already",
        Advice(
            f"open it with store.queue({queue!r})",
            f"`penstock show {word}` shows its settings, `penstock set {word}` changes them",
            f"GET /-/api/queues{path} shows its settings, PATCH changes them",
        ),
    )


def protected(queue: str) -> QueueProtected:
    """The error for a queue that cannot be deleted."""
    word, path = _word_and_path(queue)
    return QueueProtected(
        f"queue {queue!r} always exists and cannot be deleted",
        Advice(
            "empty it with purge()",
            f"`penstock purge {word} --yes` empties it",
            f"empty it with POST /-/api/queues{path}/purge",
        ),
    )


def full(queue: str, size: int, limit: int, more: int) -> QueueFull:
    """The error for messages beyond a queue's max_size."""
    word, path = _word_and_path(queue)
    retry = "put fewer, or retry when consumers have caught up"
    return QueueFull(
        f"queue {queue!r} holds {size} of at most {limit} messages; {more} more do not fit",
        Advice(
            retry,
            f"{retry}; `penstock show {word}` shows what fills it, `penstock set {word} --max-size N` allows more",
            f"{retry}; GET /-/api/queues{path} shows what fills it",
        ),
    )


def _word_and_path(queue: str) -> tuple[str, str]:
    """A queue's name as a word of a shell, and as the end of a path."""
    from urllib.parse import quote  # here, so that import penstock stays quick

    return shlex.quote(queue), "/" + quote(queue, safe="").replace(".", "%2E")
