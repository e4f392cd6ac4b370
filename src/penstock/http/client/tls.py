"""What is wrong with TLS between client and server, found out by handshakes once opening a store has failed."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

from penstock.errors import Advice, StoreUnreachable
from penstock.http.client.address import Address
from penstock.http.client.failures import Garbage, Lost

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

_SECONDS = 5.0
_UNTRUSTED = (18, 19, 20, 21)  # OpenSSL: signs itself, at the end of a chain too; unknown issuer
_OTHER_NAME = (62, 64)  # OpenSSL: host name, IP address
_PEM = "the PEM file of the certificate that signed it (its own if it signs itself)"


def explained(address: Address, error: StoreUnreachable) -> StoreUnreachable:
    """A better error for one that opening a store has met; the same error if TLS is not to blame."""
    failure = error.__cause__
    if address.share is not None or not (isinstance(failure, Lost | Garbage) or "[SSL" in str(failure)):
        return error
    import ssl

    if address.tls is None:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # nothing is sent
        try:
            _certificate(address, unchecked)
        except OSError:
            return error
        return StoreUnreachable(f"the server at {address.url} speaks TLS: use https://{address.authority}")
    try:
        _certificate(address, address.tls)
    except ssl.SSLCertVerificationError as refused:
        return _refused(address, refused)
    except ssl.SSLError as refused:
        if refused.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
            return StoreUnreachable(
                f"the server at {address.url} does not speak TLS: use http://{address.authority}, or start the "
                "server with --tls-cert"
            )
    except OSError:
        pass  # it is gone by now
    return error


def _refused(address: Address, refused: ssl.SSLCertVerificationError) -> StoreUnreachable:
    """The error for a certificate that is not accepted."""
    what = f"the certificate of the server at {address.url}"
    if refused.verify_code in _UNTRUSTED:
        return StoreUnreachable(
            f"{what} is not trusted: {refused.verify_message}{_wrong_file()}.",
            Advice(
                f"Give ca= {_PEM}, or set SSL_CERT_FILE to it",
                f"Set SSL_CERT_FILE to {_PEM}",
                f"Trust {_PEM}",
            ),
        )
    if refused.verify_code in _OTHER_NAME:
        names = _names(address)
        said = f", but for {', '.join(names)}: use one of these in the address" if names else ""
        return StoreUnreachable(f"{what} is not for {address.host!r}{said}, or have a certificate made for it")
    return StoreUnreachable(f"{what} is refused: {refused.verify_message}. Have it renewed on the server")


def _wrong_file() -> str:
    """What is wrong with the file that SSL_CERT_FILE names: OpenSSL passes over one that it cannot use."""
    import ssl

    path = os.environ.get("SSL_CERT_FILE")
    if path:
        try:
            ssl.create_default_context(cafile=path)
        except OSError as error:  # an SSLError is one
            why = (
                error.strerror
                if isinstance(error, FileNotFoundError | PermissionError)
                else "no certificates in it"
            )
            return f", and SSL_CERT_FILE is {path!r}: {why}"
    return ""


def _names(address: Address) -> list[str]:
    """The host names in a server's certificate, which is otherwise good."""
    import ssl

    assert address.tls is not None  # noqa: S101 - for the type checker
    context = ssl.create_default_context()
    context.check_hostname = False
    for each in address.tls.get_ca_certs(binary_form=True):
        context.load_verify_locations(cadata=each)
    try:
        return [str(name) for _, name in _certificate(address, context).get("subjectAltName", ())]
    except OSError:
        return []


def _certificate(address: Address, context: ssl.SSLContext) -> Mapping[str, Any]:
    """The certificate that a server shows in a handshake; empty if the context does not check it. OSError."""
    with (
        socket.create_connection((address.host, address.port), _SECONDS) as connected,
        context.wrap_socket(connected, server_hostname=address.host) as encrypted,
    ):
        return encrypted.getpeercert() or {}
