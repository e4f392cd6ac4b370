"""The command console: the console of a server, or of a store without one, in a browser."""

import os
import sys
import threading
import webbrowser

import click

from penstock.cli.app import Failure, cli, json_option, open_store, say, store_url
from penstock.cli.serve import run
from penstock.contract.kinds import kind_of

_HOST = "127.0.0.1"
_PATH = "/-/"


@cli.command(
    epilog="""\b
Examples:
  penstock console
  penstock --store slate:data console --no-browser
  penstock --store http://queue.example:8390 console"""
)
@click.option("--port", default=0, show_default=True, type=click.IntRange(0, 65_535),
              help="The port to listen on; 0 chooses a free one.")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@json_option
@click.pass_context
def console(ctx: click.Context, port: int, no_browser: bool, as_json: bool) -> None:
    """See and change the store in a browser until Ctrl-C or SIGTERM.

    Opens the console at http://127.0.0.1:PORT/-/, which only this machine can reach; whoever can log in to it may
    do everything there. Other programs may have the store open at the same time. The history of queues begins when
    the command does. Every server has the console at /-/ as well: for --store http://... the command opens that
    one, and ends.
    """
    url = store_url(ctx)
    if kind_of(url).remote:
        address = url.rstrip("/") + _PATH
        _say(address, url, as_json)
        if not no_browser and _has_browser():
            webbrowser.open(address)
        return
    from penstock.http.server import Server, listen, logs, url_of
    from penstock.http.server.server import raise_file_limit

    ctx.call_on_close(logs.set_up("auto", "warning", False))
    store = open_store(ctx)
    server = Server(store)
    raise_file_limit()
    try:
        listening = listen(_HOST, port)
    except OSError as error:
        raise Failure(OSError(f"cannot listen on {_HOST} port {port}: {error.strerror}; try another")) from error
    with listening:
        address = url_of(listening) + _PATH

        def announce() -> None:
            _say(address, store.url, as_json)
            if not no_browser and _has_browser():
                # In a thread, because some browsers return only when they are closed.
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        if not run(server, store, [listening], announce):
            ctx.exit(1)  # the log has the error


def _say(address: str, store: str, as_json: bool) -> None:
    say(as_json, {"url": address, "store": store}, f"{address} shows {store}")
    sys.stdout.flush()


def _has_browser() -> bool:
    """Whether there is a browser with windows: one in the terminal would take it from the server."""
    return (
        any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")) or sys.platform == "darwin"
    )
