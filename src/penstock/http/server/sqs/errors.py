"""Errors of SQS: their names in both protocols, their HTTP statuses, and which error of Penstock is which."""

from typing import NamedTuple

from penstock.errors import QueueNotFound
from penstock.wire import problems


class Fault(NamedTuple):
    """An error's name in the query protocol, and its HTTP status."""

    code: str
    status: int = 400

    @property
    def of_sender(self) -> bool:
        """Whether the client is to blame."""
        return self.status < 500


_OWN = "AWS.SimpleQueueService."
# By the name in the JSON protocol: those of the service's model, then those of every AWS service
FAULTS = {
    **{
        name: Fault(_OWN + name)
        for name in (
            "BatchEntryIdsNotDistinct", "BatchRequestTooLong", "EmptyBatchRequest", "InvalidBatchEntryId",
            "MessageNotInflight", "QueueDeletedRecently", "TooManyEntriesInBatchRequest", "UnsupportedOperation",
        )
    },
    **{
        name: Fault(name)
        for name in ("InvalidAttributeName", "InvalidAttributeValue", "InvalidIdFormat", "InvalidMessageContents")
    },
    "InvalidAddress": Fault("InvalidAddress", 404),
    "InvalidSecurity": Fault("InvalidSecurity", 403),
    "KmsAccessDenied": Fault("KMS.AccessDeniedException"),
    "KmsDisabled": Fault("KMS.DisabledException"),
    "KmsInvalidKeyUsage": Fault("KMS.InvalidKeyUsageException"),
    "KmsInvalidState": Fault("KMS.InvalidStateException"),
    "KmsNotFound": Fault("KMS.NotFoundException"),
    "KmsOptInRequired": Fault("KMS.OptInRequired", 403),
    "KmsThrottled": Fault("KMS.ThrottlingException"),
    "OverLimit": Fault("OverLimit", 403),
    "PurgeQueueInProgress": Fault(_OWN + "PurgeQueueInProgress", 403),
    "QueueDoesNotExist": Fault(_OWN + "NonExistentQueue"),
    "QueueNameExists": Fault("QueueAlreadyExists"),
    "ReceiptHandleIsInvalid": Fault("ReceiptHandleIsInvalid", 404),
    "RequestThrottled": Fault("RequestThrottled", 403),
    "ResourceNotFoundException": Fault("ResourceNotFoundException", 404),
    "AccessDeniedException": Fault("AccessDenied", 403),
    "InternalFailure": Fault("InternalError", 500),
    "InvalidParameterValueException": Fault("InvalidParameterValue"),
    "MissingAuthenticationTokenException": Fault("MissingAuthenticationToken", 403),
    "MissingRequiredParameterException": Fault("MissingParameter"),
    "SerializationException": Fault("MalformedInput"),
    "ServiceUnavailableException": Fault("ServiceUnavailable", 503),
    "UnknownOperationException": Fault("InvalidAction"),
    "UnrecognizedClientException": Fault("InvalidClientTokenId", 403),
}  # fmt: skip

# By the name of Penstock's error, or of HTTP's; all others are of wrong arguments
_NAMES = {
    "QueueNotFound": "QueueDoesNotExist",
    "QueueExists": "QueueNameExists",
    "QueueProtected": "UnsupportedOperation",
    "QueueFull": "RequestThrottled",  # SDKs try again later
    "DiskFull": "ServiceUnavailableException",
    "NotSupported": "UnsupportedOperation",
    "Forbidden": "AccessDeniedException",
    "Unauthorized": "UnrecognizedClientException",
    "StoreClosed": "ServiceUnavailableException",
    "StoreLocked": "ServiceUnavailableException",
    "StoreUnavailable": "ServiceUnavailableException",
    "StoreUnreachable": "ServiceUnavailableException",
    "StoreCorrupt": "InternalFailure",
    "Overloaded": "ServiceUnavailableException",
    "ServerError": "InternalFailure",
    "BadRequest": "SerializationException",
}


class SqsError(Exception):
    """An error as clients of SQS get it. `name` is a key of FAULTS."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name
        self.message = message

    @property
    def fault(self) -> Fault:
        """Its code and status."""
        return FAULTS[self.name]


def as_sqs(error: BaseException) -> SqsError:
    """An error of Penstock as one of SQS, without details that only the log may have."""
    if isinstance(error, SqsError):
        return error
    if isinstance(error, QueueNotFound):
        return no_queue()
    _, details = problems.as_problem(error)
    return of_problem(str(details["error"]), str(details["detail"]))


def of_problem(name: str, detail: str) -> SqsError:
    """An error by its public name."""
    return SqsError(_NAMES.get(name, "InvalidParameterValueException"), detail)


def no_queue() -> SqsError:
    """The error of a queue that does not exist."""
    return SqsError("QueueDoesNotExist", "The specified queue does not exist: make it with CreateQueue.")
