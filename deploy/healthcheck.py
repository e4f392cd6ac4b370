"""Whether the server of this container is alive: exit code 0 if /-/healthz answers with 200, over TLS or not."""

import os
import ssl
import sys
from http.client import HTTPException
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

context = ssl.create_default_context()
context.check_hostname = False  # the certificate names the service, not 127.0.0.1
context.verify_mode = ssl.CERT_NONE
opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))  # no proxy is asked for this machine
port = os.environ.get("PENSTOCK_SERVE_PORT", "8390")
schemes = ["http", "https"]  # TLS may be set by a flag or a file as well: what does not answer is tried otherwise
if "PENSTOCK_SERVE_TLS_CERT" in os.environ:
    schemes.reverse()
for scheme in schemes:
    try:
        with opener.open(f"{scheme}://127.0.0.1:{port}/-/healthz", timeout=2) as answer:
            sys.exit(answer.status != 200)
    except (OSError, HTTPException):
        continue
sys.exit(1)
