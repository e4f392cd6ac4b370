"""The command serve: the HTTP server, with settings from flags, environment and a TOML file."""

import asyncio
import logging
import signal
import sys
import threading
import tomllib
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output
from penstock.cli.app import Failure, cli, json_option, open_store
from penstock.cli.times import Duration
from penstock.contract.kinds import kind_of
from penstock.contract.store import Store
from penstock.errors import InvalidArgument

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from penstock.http.server import Server

_PORT = 8390
_FLAGS_ONLY = {"config", "as_json"}  # settings that a TOML file cannot have
_log = logging.getLogger("penstock.server")


def _option(name: str, **more: Any) -> "Callable[[Any], Any]":
    """An option with an environment variable: --tls-key is PENSTOCK_SERVE_TLS_KEY."""
    plain = name.removeprefix("--").replace("-", "_")
    return click.option(name, envvar=f"PENSTOCK_SERVE_{plain.upper()}", **more)


_until_a_minute = Duration(0.001, 60)


def config_option(command: Any) -> Any:
    """The --config option, read before the others: the file has their defaults."""
    return click.option(
        "--config",
        envvar="PENSTOCK_CONFIG",
        show_envvar=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_read,
        help="A TOML file with any of these settings; flags and environment take precedence.",
    )(command)


def _read(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    if path is None:
        return
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        given = tomllib.loads(text)
    except OSError as error:
        raise click.BadParameter(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{path} is no TOML: {error}") from None
    own = ctx.info_name or ""
    settings: dict[str, Any] = {
        each.name: each for each in ctx.command.params if each.name and each.name not in _FLAGS_ONLY
    }
    for name, value in given.items():
        if name not in ("store", own) or isinstance(value, dict) != (name == own):
            expected = f'it has store = "URL" and a table [{own}]'
            raise click.BadParameter(f"{path} line {_line(text, name)}: {name!r} is out of place; {expected}")
    ctx.default_map = {}
    for name, value in given.get(own, {}).items():
        try:
            if name not in settings:
                raise click.BadParameter(f"there is no setting {name!r}; give {', '.join(sorted(settings))}")
            ctx.default_map[name] = _setting(ctx, settings[name], value)
        except click.BadParameter as error:
            raise click.BadParameter(f"{path} line {_line(text, own, name)}: {error.message}") from None
    root = ctx.find_root()
    source = root.get_parameter_source("store")
    if "store" in given and source in (None, click.core.ParameterSource.DEFAULT):
        root.params["store"] = given["store"]


def _setting(ctx: click.Context, option: click.Option, value: Any) -> Any:
    """A setting of a TOML file, checked as its option is; BadParameter."""
    if option.multiple and isinstance(value, str):
        value = [value]
    fits = option.multiple if isinstance(value, list) else option.is_flag or not isinstance(value, bool)
    try:
        if not fits or isinstance(value, dict):
            raise click.BadParameter(f"{value!r} is no value")
        option.type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise click.BadParameter(f"{option.name}: {error.message}") from None
    return value


def _line(text: str, *names: str) -> int:
    """The line of a TOML document that sets a name, or a name in a table. tomllib does not tell."""
    lines, first = text.splitlines(keepends=True), 1
    for last in range(1, len(lines) + 1):
        try:
            found: Any = tomllib.loads("".join(lines[:last]))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a value of several lines
        for name in names:
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None:
            break
        first = last + 1
    return first


@cli.command(
    epilog="""\b
Examples:
  penstock serve
  penstock --store data serve --port 9000
  curl -X PUT localhost:8390/jobs
  curl --data-binary 'resize cat.jpg' localhost:8390/jobs/messages
  curl -i localhost:8390/jobs/messages
\b
For other machines, with tokens and TLS:
  penstock token create me --role admin --tokens tokens
  penstock --store data serve --host 0.0.0.0 --tokens tokens \\
      --tls-cert cert.pem --tls-key key.pem
\b
Each setting is a flag, an environment variable (--tls-cert is PENSTOCK_SERVE_TLS_CERT), or a line in
the file that --config names:
  store = "/var/lib/penstock"
  [serve]
  host = "0.0.0.0"
  tokens = "/etc/penstock/tokens"
  max_connections = 5000"""
)
@config_option
@_option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@_option("--port", default=_PORT, show_default=True, type=click.IntRange(0, 65_535),
         help="The port to listen on; 0 chooses a free one.")  # fmt: skip
@click.option(
    "--tokens", envvar=["PENSTOCK_SERVE_TOKENS", "PENSTOCK_TOKENS"], metavar="FILE",
    help="Require a token of this file with every request: see `penstock token --help`.",
)  # fmt: skip
@_option("--insecure", is_flag=True, help="Listen beyond this machine without tokens: everyone may do everything.")
@_option("--allow-host", multiple=True, metavar="NAME",
         help="Without tokens: a host name that requests may have, as of a proxy; repeatable.")  # fmt: skip
@_option("--open-monitoring", is_flag=True, help="Answer /-/readyz and /-/metrics without a token.")
@_option("--tls-cert", metavar="FILE", help="Speak TLS, with this certificate and its chain (PEM).")
@_option("--tls-key", metavar="FILE", help="The certificate's key (PEM), if it is not in the same file.")
@_option("--log-format", default="auto", show_default=True, type=click.Choice(["auto", "json", "text"]),
         help="Format of the log on stderr; auto is text for a terminal, and JSON otherwise.")  # fmt: skip
@_option("--log-level", default="warning", show_default=True,
         type=click.Choice(["debug", "info", "warning", "error"]), help="Lowest level to log.")  # fmt: skip
@_option("--access-log", is_flag=True, help="Log a line for every request; costs some throughput.")
@_option("--max-connections", default=20_000, show_default=True, type=click.IntRange(1),
         help="Most open connections.")  # fmt: skip
@_option("--max-buffered", default=512 << 20, show_default=True, type=click.IntRange(1 << 20),
         help="Most bytes of request bodies in memory, and most of responses.")  # fmt: skip
@_option("--arriving", default=30, show_default=True, type=_until_a_minute,
         help="Time until a request must have arrived completely.")  # fmt: skip
@_option("--leaving", default=60, show_default=True, type=_until_a_minute,
         help="Time until a client must have read its response.")  # fmt: skip
@_option("--idle", default=300, show_default=True, type=Duration(1),
         help="Time until an idle connection is closed.")  # fmt: skip
@_option("--peers", default=0, show_default=True, type=click.IntRange(0, 1_000),
         help="Of a folder store: number of other servers that fetch from it.")  # fmt: skip
@json_option
@click.pass_context
def serve(ctx: click.Context, /, host: str, port: int, as_json: bool, **given: Any) -> None:
    """Serve the store over HTTP until Ctrl-C or SIGTERM.

    Clients are `penstock --store http://HOST:PORT ...`, penstock.open("http://HOST:PORT") and curl;
    http://HOST:PORT/-/docs documents the API, and http://HOST:PORT/-/ is the console, for browsers. The address is
    printed once the server accepts requests. Without tokens the server listens on this machine only. SIGHUP reads
    tokens and certificate again. Probes and monitoring use /-/healthz, /-/readyz and /-/metrics. The server of a
    folder store is also its mover and reaper.
    """
    from penstock.http.server import Access, Limits, Server, listen, logs, url_of
    from penstock.http.server.server import check_reach, is_loopback, raise_file_limit

    ctx.call_on_close(logs.set_up(given["log_format"], given["log_level"], given["access_log"]))
    served = threading.Event()

    def stopped() -> None:
        if served.is_set():
            _log.info("stopped")

    ctx.call_on_close(stopped)  # runs after the store is closed
    access = None if given["tokens"] is None else Access(given["tokens"], given["open_monitoring"])
    tls = _tls(given["tls_cert"], given["tls_key"])
    store = open_store(ctx, given["peers"], make=True)
    limits = Limits(
        given["max_connections"], given["max_buffered"], given["arriving"], given["leaving"], given["idle"]
    )
    server = Server(
        store, limits,
        access=access, allow_hosts=given["allow_host"], tls=tls, access_log=given["access_log"],
    )  # fmt: skip
    raise_file_limit()
    try:
        listening = listen(host, port)
    except OSError as error:
        raise Failure(OSError(f"cannot listen on {host} port {port}: {error.strerror}; try another")) from error
    with listening:
        check_reach(listening, access, given["insecure"])
        if access is not None and tls is None and not is_loopback(listening):
            _log.warning("tokens travel in the clear: give --tls-cert, or have a proxy in front that speaks TLS")
        url = url_of(listening, "http" if tls is None else "https")

        def announce() -> None:
            if as_json:
                output.print_json({"url": url, "store": store.url})
            else:
                click.echo(f"{url} serves {store.url}")
            sys.stdout.flush()
            served.set()
            _log.info("serving %s", url)

        def reload() -> None:
            if access is not None:
                access.reload()
            _load(tls, given["tls_cert"], given["tls_key"])

        if not run(server, store, [listening], announce, reload):
            ctx.exit(1)  # the log has the error


def run(
    server: "Server",
    store: Store,
    sockets: list[Any],
    announce: "Callable[[], None]",
    reload: "Callable[[], None]" = lambda: None,
) -> bool:
    """Serve until SIGINT or SIGTERM: True; or until the server itself fails, not just a request: False."""
    from penstock.http.server.server import new_loop

    async def serve() -> bool:
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        await server.start(sockets)
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, stopping.set)
        loop.add_signal_handler(signal.SIGHUP, reload)
        threading.excepthook = partial(_thread_failed, loop, server)
        announce()
        signalled = asyncio.ensure_future(stopping.wait())
        failed = asyncio.ensure_future(server.failure())
        await asyncio.wait([signalled, failed], return_when=asyncio.FIRST_COMPLETED)
        ended_well = signalled.done()
        _log.info("stopping")
        signalled.cancel()
        failed.cancel()
        await server.stop()
        return ended_well

    hook = threading.excepthook
    try:
        with kind_of(store.url).tended(store.backend), asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(serve())
    except Exception:
        _log.exception("the server failed")
        return False
    finally:
        threading.excepthook = hook


def _thread_failed(loop: asyncio.AbstractEventLoop, server: "Server", failure: threading.ExceptHookArgs) -> None:
    """Stop the server: a background thread failed, and its work (commits, timers) no longer happens."""
    _log.error(
        "thread %s failed", failure.thread.name if failure.thread else "", exc_info=failure.exc_value or True
    )
    loop.call_soon_threadsafe(server.give_up)


def _tls(cert: str | None, key: str | None) -> "ssl.SSLContext | None":
    if cert is None:
        if key is not None:
            raise InvalidArgument("--tls-key without --tls-cert: give the certificate as well")
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:  # SSLError is a subclass
        raise InvalidArgument(
            f"cannot use the certificate {cert} with the key {key or cert}: {error.strerror or error}; give PEM "
            "files that belong together"
        ) from None
    return context


def _load(context: "ssl.SSLContext | None", cert: str, key: str | None) -> None:
    """Use a renewed certificate for new connections."""
    if context is None:
        return
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        _log.error("the certificate cannot be read again, the old one stays in use: %s", str(error))
