"""Tensorizer, from a file or URL in its own format (`make_tensorizer.py`).

Options: `num_readers`; by default it chooses itself. `key`, in hexadecimal, of an encrypted file.
"""

from __future__ import annotations

import os
from typing import Any

import measure
from tensorizer import DecryptionParams, TensorDeserializer
from tensorizer.stream_io import open_stream


def opened(location: str) -> Any:
    if "://" not in location:
        return location
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    return open_stream(
        location,
        s3_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        s3_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        s3_endpoint=endpoint.split("://")[1],
        force_http=endpoint.startswith("http://"),
    )


def load(job: measure.Job) -> measure.Tensors:
    options = dict(job.options)
    if "key" in options:
        options["encryption"] = DecryptionParams.from_key(bytes.fromhex(options.pop("key")))
    # The constructor loads everything.
    yield from TensorDeserializer(opened(job.locations[0]), device="cpu", **options).items()


measure.run(load)
