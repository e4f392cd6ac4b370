"""The plug-in for `http:` and `https:` URLs: opens a server's store, reads its tables."""

from penstock.contract.backend import AsyncBackend
from penstock.contract.kinds import Kind, Options
from penstock.contract.tables import Tables
from penstock.errors import InvalidArgument
from penstock.http.client.backend import RemoteBackend, open_remote


class RemoteKind(Kind):
    """`http://host:port` or `https://host:port`."""

    name = "remote"
    remote = True
    has_tables = True
    has_streams = True

    def check(self, url: str, options: Options) -> None:
        super().check(url, options)
        for name, usual in (("sync", "always"), ("dialect", "doc")):
            given = getattr(options, name)
            if given != usual:
                raise InvalidArgument(
                    f"{name}={given!r}: that is for the server to say; give it to `penstock serve`"
                )

    def open(self, url: str, options: Options) -> RemoteBackend:
        return open_remote(url, options.timeout, options.clock, options.token, options.ca)

    async def open_for_loop(self, url: str, options: Options) -> AsyncBackend:
        from penstock.http.client.coroutines import open_remote  # late: most programs have no event loop

        return await open_remote(url, options.timeout, options.clock, options.token, options.ca)

    def tables(self, url: str) -> Tables:
        from penstock.http.client.tables import RemoteTables

        return RemoteTables()

    def absolute(self, url: str) -> str:
        return url

    def how_to_copy(self, url: str) -> str:
        return (
            f"store {url!r} is kept by a server: run `penstock --store DIR backup DEST` on the machine that has "
            "its folder; the server may go on meanwhile"
        )


KIND = RemoteKind()
