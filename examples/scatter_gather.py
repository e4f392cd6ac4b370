"""Scatter and gather: a question in many parts, its answers in a queue that lives as long as the question.

    python examples/scatter_gather.py [PARTS]

Each part says in a header where its answer goes. Any number of workers, on any machines, may answer. If one dies,
another gets its part; the key makes an answer that is given twice arrive once. A reply queue that its asker left
behind loses its messages after an hour (`retention`), and is deleted by `penstock delete`.
"""

import sys
import tempfile
import threading
import uuid

import penstock


def ask(store: penstock.Store, parts: list[str], patience: float = 30) -> dict[str, int]:
    """The answers by part; those that are not there after `patience` seconds are missing."""
    replies = store.create(f"reply-{uuid.uuid4()}", retention=3600, description="answers to a question")
    try:
        drafts = [penstock.Draft(part, headers={"reply-to": replies.name}) for part in parts]
        store.queue("questions").put_many(drafts)
        answers: dict[str, int] = {}
        while len(answers) < len(parts) and (reply := replies.pop(wait=patience)) is not None:
            answers[reply.headers["part"]] = int(reply.payload)
        return answers
    finally:
        store.delete(replies.name)


def answer(store: penstock.Store, message: penstock.Message) -> None:
    """Count letters, and send the result where the question says."""
    part = message.payload.decode()
    try:
        replies = store.queue(message.headers["reply-to"])
        replies.put(str(len(part)), headers={"part": part}, key=message.id)
    except penstock.QueueNotFound:
        pass  # the asker has given up: nobody waits for this answer


def main(parts: int = 20) -> None:
    """Ask, with two workers in threads; they may as well be other processes."""
    with tempfile.TemporaryDirectory() as folder, penstock.open(folder) as store:
        questions, stop = store.create("questions"), threading.Event()
        handler = lambda message: answer(store, message)  # noqa: E731
        workers = threading.Thread(target=penstock.work, args=(questions, handler, 2), kwargs={"stop": stop})
        workers.start()
        answers = ask(store, ["x" * number for number in range(1, parts + 1)])
        stop.set()
        workers.join()
        left = [info.name for info in store.queues()]
    print(f"{len(answers)} answers, {sum(answers.values())} letters; queues left: {', '.join(left)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
