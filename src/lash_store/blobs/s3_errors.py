"""What the S3 library raises, as errors of the store. No text of the library is repeated: it may quote a request."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

from msgspec import Struct

from lash_store.errors import InvalidArgument, Misuse, NotFound, NotPermitted, StorageFull, StoreError, Unavailable

_FULL = frozenset({"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"})
_RIGHTS = "needs GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListBucket"


class Library(Struct, frozen=True):
    """What is used of aiobotocore, which is imported when it is first needed."""

    session: Any
    config: Any
    exceptions: Any
    http: Any
    refusal: Any  # raised for an answer of the server that says no


@cache
def library() -> Library:
    """The library, or what to install."""
    try:
        import aiohttp
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session
        from botocore import exceptions
    except ModuleNotFoundError as error:
        if error.name not in ("aiobotocore", "aiohttp", "botocore"):
            raise
        message = "S3 needs aiobotocore, which is not installed: pip install 'lash-store[s3]'"
        raise Misuse("missing-extra", message) from error
    return Library(get_session, AioConfig, exceptions, aiohttp, exceptions.ClientError)


def is_missing(error: Any) -> bool:
    """Whether the server has no such object or upload. A missing bucket is another matter."""
    return _status(error) == 404 and _code(error) != "NoSuchBucket"


def is_unsatisfiable(error: Any) -> bool:
    """Whether the asked range lies beyond the object's end."""
    return _status(error) == 416


@contextmanager
def typed(bucket: str) -> Generator[None]:
    """Give the library's errors the store's types."""
    names, http = library().exceptions, library().http
    try:
        yield
    except library().refusal as error:
        raise _refusal(bucket, _code(error), _status(error)) from None
    except (names.NoCredentialsError, names.PartialCredentialsError, names.CredentialRetrievalError):
        raise NotPermitted(f"bucket {bucket!r}: no credentials were found") from None
    except names.ParamValidationError:
        raise InvalidArgument("bucket", f"{bucket!r} is not the name of a bucket") from None
    except (names.BotoCoreError, http.ClientError, OSError) as error:
        raise Unavailable(f"bucket {bucket!r} did not answer ({type(error).__name__}). Repeat the call.") from None


def _refusal(bucket: str, code: str, status: int) -> StoreError:
    if code == "NoSuchBucket":
        return NotFound("bucket", bucket)
    said = f"bucket {bucket!r} answered HTTP {status}" + ("" if code.isdigit() else f", {code}")
    if code in _FULL or status == 507:
        return StorageFull(said)
    if status in (401, 403):
        return NotPermitted(f"{said}; the role {_RIGHTS}")
    return Unavailable(f"{said}. Repeat the call.")


def _code(error: Any) -> str:
    """The server's word for it, as far as it is one."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    return code if code.isalnum() and len(code) <= 64 else "unknown"


def _status(error: Any) -> int:
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status
