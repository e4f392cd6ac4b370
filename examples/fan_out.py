"""Fan-out with asyncio: one job becomes many, and hundreds of them are waited for at a time.

    python examples/fan_out.py [SITES] [PAGES]

A site is a job that puts a job for each of its pages, under keys: if the process dies in between, the site is done
again and puts no page twice. Coroutines wait for pages, not threads, so a thousand at a time cost little.
"""

import asyncio
import sys
import tempfile

import penstock
import penstock.aio


async def main(sites: int = 5, pages: int = 40) -> None:
    """Crawl sites that have so many pages each."""
    fetched: list[str] = []

    with tempfile.TemporaryDirectory() as folder:
        async with penstock.aio.open(folder) as store:
            site_queue = await store.create("sites")
            page_queue = await store.create("pages")

            async def crawl(message: penstock.aio.Message) -> None:
                site = message.payload.decode()
                urls = [f"{site}/{number}" for number in range(pages)]
                await page_queue.put_many([penstock.Draft(url, key=url) for url in urls])  # then the site is done

            async def fetch(message: penstock.aio.Message) -> None:
                await asyncio.sleep(0.05)  # a request
                fetched.append(message.payload.decode())

            await site_queue.put_many([f"https://{number}.example" for number in range(sites)])
            stop = asyncio.Event()
            fetching = asyncio.create_task(penstock.aio.work(page_queue, fetch, concurrency=500, stop=stop))
            await penstock.aio.work(site_queue, crawl, concurrency=10, until_empty=True)
            while await page_queue.count() or (await page_queue.counts())["in_flight"]:
                await asyncio.sleep(0.02)
            stop.set()
            worked = await fetching
    print(f"fetched {len(set(fetched))} pages of {sites} sites; {worked}")


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:3])))
