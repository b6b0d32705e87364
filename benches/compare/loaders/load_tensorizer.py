"""Tensorizer: `load_tensorizer.py URL READERS`, of a file in its own format."""

import os
import sys

import measure
from tensorizer import TensorDeserializer
from tensorizer.stream_io import open_stream

endpoint = os.environ["AWS_ENDPOINT_URL"]


def load() -> dict:
    stream = open_stream(
        sys.argv[1],
        s3_access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        s3_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        s3_endpoint=endpoint.split("://")[1],
        force_http=endpoint.startswith("http://"),
    )
    return dict(TensorDeserializer(stream, device="cpu", num_readers=int(sys.argv[2])))


measure.run(load)
