"""An S3 server for the tests: moto's, in a process of its own on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from typing import Any

import boto3

from lash_store.blobs.s3 import S3Bytes

ACCESS_KEY = "AKIAINVENTED00000000"
SECRET_KEY = "invented/secret+key/which/no/error/may/show"
BUCKET = "attachments"

# It ends with its standard input, so that a test run that was killed leaves no server behind.
LAUNCH = """
import sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
print("%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
server.stop()
"""


class S3Server:
    """A running server. `end` stops it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        assert address, "moto's server did not start; `pip install 'moto[server]'`"
        self.url = f"http://{address}"
        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
        self.client: Any = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **keys)  # looks in from outside

    def store(self, **options: Any) -> S3Bytes:
        """A byte store in the bucket of this server."""
        return s3_store(self.url, **options)

    def demand_keys(self) -> None:
        """From the next request on, only known access keys are served."""
        self._post("/moto-api/reset-auth", b"0")

    def reset(self) -> None:
        """Forget every bucket, and serve everyone again."""
        self._post("/moto-api/reset-auth", b"inf")
        self._post("/moto-api/reset", b"")

    def _post(self, path: str, body: bytes) -> None:
        headers = {"Content-Type": "text/plain"}  # anything but a form, which the server would take apart
        request = urllib.request.Request(self.url + path, data=body, headers=headers)  # noqa: S310 - our own server
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - as above
            pass

    def end(self) -> None:
        """Stop the process and wait for it."""
        self.client.close()
        self._process.communicate(timeout=30)


def s3_store(url: str, **options: Any) -> S3Bytes:
    """A byte store with invented keys, without retries: a test that waits for them tests the library."""
    chosen: dict[str, Any] = {
        "bucket": BUCKET,
        "endpoint_url": url,
        "region": "us-east-1",
        "path_style": True,
        "access_key": ACCESS_KEY,
        "secret_key": SECRET_KEY,
        "attempts": 1,
        **options,
    }
    return S3Bytes(**chosen)
