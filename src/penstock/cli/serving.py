"""The command that serves: serve."""

import asyncio
import signal
import sys

import click

from penstock.cli import output
from penstock.cli.app import Failure, cli, json_option, open_store

_PORT = 8390


@cli.command(
    epilog="""\b
Examples:
  penstock serve
  penstock --store data serve --port 9000
  curl -X PUT localhost:8390/jobs
  curl --data-binary 'resize cat.jpg' localhost:8390/jobs/messages
  curl -i localhost:8390/jobs/messages"""
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port", default=_PORT, show_default=True, type=click.IntRange(0, 65_535), help="0 finds a free one."
)
@click.option(
    "--peers", default=0, show_default=True, type=click.IntRange(0, 1_000),
    help="Of a folder store: how many others fetch from it.",
)  # fmt: skip
@json_option
@click.pass_context
def serve(ctx: click.Context, host: str, port: int, peers: int, as_json: bool) -> None:
    """Serve the store over HTTP until Ctrl-C or SIGTERM.

    Other processes and machines then use it with `penstock --store http://HOST:PORT ...`, with
    penstock.open("http://HOST:PORT"), or with curl; http://HOST:PORT/-/docs explains how. The address is printed
    once the server answers. Of a folder store the server is mover and reaper, too. There are no passwords: listen
    on an address that only friends can reach.
    """
    from penstock.server import Server, listen, url_of  # here, because no other command needs it
    from penstock.server.running import new_loop, raise_file_limit

    store = open_store(ctx, peers)
    server = Server(store)
    raise_file_limit()
    try:
        listening = listen(host, port)
    except OSError as error:
        raise Failure(OSError(f"cannot listen on {host} port {port}: {error.strerror}; try another")) from error
    url = url_of(listening)

    async def run() -> None:
        stopping = asyncio.Event()
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stopping.set)
        await server.start([listening])
        if as_json:
            output.print_json({"url": url, "store": store.url})
        else:
            click.echo(f"{url} serves {store.url}")
        sys.stdout.flush()
        await stopping.wait()
        await server.stop()

    from penstock.folder.daemons import tended

    with tended(store._keeper), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
