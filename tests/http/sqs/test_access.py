"""With tokens on, the session token is the token: every action against every kind of token, in both protocols."""

import json
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest

import penstock
from penstock.contract import roles
from penstock.http.server import Access, tokens
from penstock.http.server.sqs.actions import ACTIONS
from tests.http.serving import serving
from tests.http.sqs.conftest import FORM, Service

# Said once more, by hand, as a table that is only compared with itself proves nothing
ADMINS = {
    "AddPermission", "CancelMessageMoveTask", "CreateQueue", "DeleteQueue", "PurgeQueue", "RemovePermission",
    "SetQueueAttributes", "StartMessageMoveTask", "TagQueue", "UntagQueue",
}  # fmt: skip
ALLOWED = {
    "read": {
        "ListQueues", "ListDeadLetterSourceQueues", "ListMessageMoveTasks", "GetQueueUrl", "GetQueueAttributes",
        "ListQueueTags",
    },
    "write": {"SendMessage", "SendMessageBatch", "GetQueueUrl", "GetQueueAttributes", "ListQueueTags"},
    "consume": {
        "ReceiveMessage", "DeleteMessage", "DeleteMessageBatch", "ChangeMessageVisibility",
        "ChangeMessageVisibilityBatch", "GetQueueUrl", "GetQueueAttributes", "ListQueueTags",
    },
    "admin": set(ACTIONS),
}  # fmt: skip


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, dict[str, str]]]:
    file = str(tmp_path_factory.mktemp("tokens") / "tokens")
    secrets = {name: tokens.create(file, name, role) for name, role in roles.ROLES.items()}
    with penstock.open("memory:") as store, serving(store, access=Access(file)) as server:
        yield Service(store, server.url), secrets


@pytest.mark.parametrize("name", ALLOWED)
def test_a_token_allows_what_its_roles_allow(guarded: tuple[Service, dict[str, str]], name: str) -> None:
    service, secrets = guarded
    errors = {}
    for action in ACTIONS:
        told = service.json(action, {}, X_Amz_Security_Token=secrets[name])
        form = urlencode({"Action": action}).encode()
        asked = service.ask("POST", "/", form, Content_Type=FORM, X_Amz_Security_Token=secrets[name])
        assert told.status == asked.status
        errors[action] = told.error if told.status >= 400 else ""
        assert asked.status == 200 or asked.error == errors[action]
    assert {action for action, error in errors.items() if error != "AccessDenied"} == ALLOWED[name]
    assert name != "admin" or ALLOWED[name] >= ADMINS


@pytest.mark.parametrize(("headers", "error"), [
    ({}, "MissingAuthenticationToken"),
    ({"X_Amz_Security_Token": "pst_wrong"}, "InvalidClientTokenId"),
    ({"X_Amz_Security_Token": ""}, "InvalidClientTokenId"),
    ({"Authorization": "AWS4-HMAC-SHA256 Credential=a/20260101/a/sqs/aws4_request"}, "MissingAuthenticationToken"),
    ({"Authorization": "Bearer pst_wrong"}, "InvalidClientTokenId"),
])  # fmt: skip
def test_without_a_known_token_there_is_amazons_own_error(
    guarded: tuple[Service, dict[str, str]], headers: dict[str, str], error: str
) -> None:
    service, _ = guarded
    for action in ACTIONS:
        told = service.json(action, {}, **headers)
        assert (told.status, told.error) == (403, error)
    asked = service.ask("POST", "/", b"Action=ListQueues", Content_Type=FORM, **headers)
    assert (asked.status, asked.error) == (403, error)


def test_a_signed_url_carries_the_token_too(guarded: tuple[Service, dict[str, str]]) -> None:
    service, secrets = guarded
    token = quote(secrets["read"], safe="")
    assert service.ask("GET", f"/?Action=ListQueues&X-Amz-Security-Token={token}").status == 200
    assert service.ask("GET", "/?Action=ListQueues&X-Amz-Security-Token=wrong").error == "InvalidClientTokenId"


def test_other_clients_send_the_token_as_ever(guarded: tuple[Service, dict[str, str]]) -> None:
    service, secrets = guarded
    assert service.json("ListQueues", {}, Authorization=f"Bearer {secrets['read']}").status == 200
    assert service.ask("GET", "/").status == 303
    plain = service.ask("POST", "/", b"")
    assert (plain.status, json.loads(plain.body)["error"]) == (401, "Unauthorized")
