"""The table of actions agrees with Amazon's description of the service, as botocore has it."""

from typing import Any

import botocore.session
import pytest

from penstock.http.server.sqs import actions
from penstock.http.server.sqs.actions import ACTIONS
from penstock.http.server.sqs.endpoint import HANDLERS
from penstock.http.server.sqs.errors import FAULTS
from penstock.http.server.sqs.shapes import Listing, Shape, Structure, Table

MODEL = botocore.session.get_session().get_service_model("sqs")
_400 = (
    "BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest", "InvalidBatchEntryId",
    "MessageNotInflight", "QueueDeletedRecently", "TooManyEntriesInBatchRequest", "UnsupportedOperation",
)  # fmt: skip
# Said once more, by hand: botocore's model had codes and statuses until 1.31.81.
CODES = {
    **{name: (f"AWS.SimpleQueueService.{name}", 400) for name in _400},
    "InvalidAddress": ("InvalidAddress", 404),
    "InvalidAttributeName": ("InvalidAttributeName", 400),
    "InvalidAttributeValue": ("InvalidAttributeValue", 400),
    "InvalidIdFormat": ("InvalidIdFormat", 400),
    "InvalidMessageContents": ("InvalidMessageContents", 400),
    "InvalidSecurity": ("InvalidSecurity", 403),
    "KmsAccessDenied": ("KMS.AccessDeniedException", 400),
    "KmsDisabled": ("KMS.DisabledException", 400),
    "KmsInvalidKeyUsage": ("KMS.InvalidKeyUsageException", 400),
    "KmsInvalidState": ("KMS.InvalidStateException", 400),
    "KmsNotFound": ("KMS.NotFoundException", 400),
    "KmsOptInRequired": ("KMS.OptInRequired", 403),
    "KmsThrottled": ("KMS.ThrottlingException", 400),
    "OverLimit": ("OverLimit", 403),
    "PurgeQueueInProgress": ("AWS.SimpleQueueService.PurgeQueueInProgress", 403),
    "QueueDoesNotExist": ("AWS.SimpleQueueService.NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "ReceiptHandleIsInvalid": ("ReceiptHandleIsInvalid", 404),
    "RequestThrottled": ("RequestThrottled", 403),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
}


def ours(shape: Shape) -> Any:
    """A shape as nested names, types and requirements."""
    if isinstance(shape, Structure):
        return {member.name: (member.required, ours(member.shape)) for member in shape.members}
    if isinstance(shape, Listing | Table):
        return shape.kind, ours(shape.item)
    return shape.kind


def theirs(shape: Any) -> Any:
    if shape is None:
        return {}
    if shape.type_name == "structure":
        return {name: (name in shape.required_members, theirs(member)) for name, member in shape.members.items()}
    if shape.type_name == "list":
        return "list", theirs(shape.member)
    if shape.type_name == "map":
        return "map", theirs(shape.value)
    return shape.type_name


def test_there_are_the_actions_of_the_service() -> None:
    assert set(ACTIONS) == set(HANDLERS) == set(MODEL.operation_names)
    assert len(ACTIONS) == 23


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_takes_and_gives_what_amazons_does(name: str) -> None:
    theirs_of = MODEL.operation_model(name)
    assert ours(ACTIONS[name].takes) == theirs(theirs_of.input_shape)
    assert ours(ACTIONS[name].gives) == theirs(theirs_of.output_shape)
    assert set(ACTIONS[name].errors) == {shape.name for shape in theirs_of.error_shapes}


def test_every_error_has_the_code_and_status_that_amazon_gives() -> None:
    assert {name: tuple(FAULTS[name]) for name in CODES} == CODES
    assert {shape.name for shape in MODEL.error_shapes} == set(CODES)


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ("QueueAttributeName", actions.QUEUE_ATTRIBUTES),
        ("MessageSystemAttributeName", actions.SYSTEM_ATTRIBUTES),
        ("MessageSystemAttributeNameForSends", actions.SENT_SYSTEM_ATTRIBUTES),
    ],
)
def test_the_names_of_attributes_are_amazons(shape: str, names: tuple[str, ...]) -> None:
    assert set(names) == set(MODEL.shape_for(shape).enum)
    assert len(names) == len(set(names))
