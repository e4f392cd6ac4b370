"""A web service that answers at once and does the work later.

    python examples/fastapi_service.py      or: uvicorn examples.fastapi_service:app; needs fastapi and uvicorn
    curl -X POST 'localhost:8000/thumbnails?image=cat.jpg'

A request is answered once its job is on stable storage: a crash after that loses nothing. The worker runs in the
same event loop; it may as well be a process of its own (producer_and_worker.py), with the same PENSTOCK_STORE.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import uvicorn
from fastapi import FastAPI, Request

import penstock
import penstock.aio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the store and start the worker; at the end it releases what it holds."""
    async with penstock.aio.open(os.environ.get("PENSTOCK_STORE", "penstock-data")) as store:
        with suppress(penstock.QueueExists):
            await store.create("thumbnails", max_attempts=3, keep_done=3600)
        app.state.thumbnails = await store.queue("thumbnails")
        worker = asyncio.create_task(work(app.state.thumbnails))
        yield
        worker.cancel()
        await asyncio.wait([worker])


async def work(queue: penstock.aio.Queue) -> None:
    """Work until SIGTERM or Ctrl-C. The worker hears these in place of uvicorn, and so passes them on."""
    await penstock.aio.work(queue, resize, concurrency=4)
    signal.raise_signal(signal.SIGTERM)


async def resize(message: penstock.aio.Message) -> None:
    """The work."""
    print(f"resized {message.payload.decode()}", flush=True)


app = FastAPI(lifespan=lifespan)


@app.post("/thumbnails", status_code=202)
async def ask_for_thumbnail(request: Request, image: str) -> dict[str, str]:
    """Put a job. A client may repeat the request with the same Idempotency-Key for five minutes."""
    key = request.headers.get("Idempotency-Key")
    return {"id": await request.app.state.thumbnails.put(image, key=key)}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))
