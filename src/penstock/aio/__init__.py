"""Penstock for coroutines: the names of `penstock`, with `await`.

>>> async with penstock.aio.open("http://queue.example:8390") as store:
...     jobs = await store.create("jobs")
...     await jobs.put(b"resize cat.jpg")
...     for message in await jobs.claim(10, lease=60, wait=20):
...         await message.ack()
...     async for message in jobs.messages("failed"):
...         print(message.reason)

What asks a store is a coroutine, also where `penstock` has a property: `await queue.settings()`, `await
queue.count()`. Iterators are asynchronous: `peek` and `messages`. No thread waits for anything: thousands of
coroutines may wait for messages at the same time.
"""

from penstock.aio.opening import open  # noqa: A004 - as penstock.open()
from penstock.contract.aio import Message, Queue, Store
from penstock.workers.coroutines import work

__all__ = ["Message", "Queue", "Store", "open", "work"]
