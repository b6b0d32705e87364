"""Streaming by several processes that divide files among themselves; here each reads alone."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from tload import InvalidRequestError, UnsupportedError
from tload._errors import advise
from tload.compat.runai.file_streamer import FileStreamer, device_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    import torch

    from tload.compat.runai.file_streamer import FileChunks
    from tload.compat.runai.stores import S3Credentials

__all__ = ["DistributedStreamer"]

_logger = logging.getLogger(__name__)


class DistributedStreamer:
    """A `FileStreamer` with the interface for dividing files among processes, which it does not do.

    `is_distributed=True` is accepted where runai_model_streamer, too, would read alone: without a
    process group, in a group of one, and with a backend that does not fit the device. Where it
    would divide files, `stream_files` raises.
    """

    def __init__(self) -> None:
        """Make an idle streamer."""
        self.file_streamer = FileStreamer()

    def __enter__(self) -> Self:
        self.file_streamer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.file_streamer.__exit__(kind, error, traceback)

    def stream_files(
        self,
        file_stream_requests: list[FileChunks],
        credentials: S3Credentials | None,
        device: str | torch.device | None,
        is_distributed: bool,  # noqa: FBT001  # the signature is theirs
        owned: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        """Start to read ranges of files: see `FileStreamer.stream_files`.

        Raises:
            UnsupportedError: The processes of a group would divide the files among them.
        """
        refuse_to_divide(is_distributed=is_distributed, device=device)
        self.file_streamer.stream_files(file_stream_requests, credentials, device, owned=owned)

    def get_chunks(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield `(id, index, tensor)` for each range: see `FileStreamer.get_chunks`."""
        return self.file_streamer.get_chunks()


def refuse_to_divide(*, is_distributed: bool, device: str | torch.device | None) -> None:
    """Raise an error if runai_model_streamer would divide the files among a group's processes.

    Raises:
        UnsupportedError: It would divide the files.
        InvalidRequestError: RUNAI_STREAMER_DIST is neither 0, 1 nor auto.
    """
    if not is_distributed:
        return
    wanted = os.environ.get("RUNAI_STREAMER_DIST", "auto")
    if wanted not in {"0", "1", "auto"}:
        message = f"environment variable RUNAI_STREAMER_DIST={wanted!r}: wanted 0, 1 or auto"
        raise InvalidRequestError(message)
    processes, backend = _group()
    on_host = device_name(device) == "cpu"
    unfit = {"nccl": on_host, "gloo": not on_host}.get(backend, False)
    if wanted == "0" or processes == 1 or unfit or (wanted == "auto" and backend != "nccl"):
        _logger.info("is_distributed=True: this process reads alone (RUNAI_STREAMER_DIST=%s)", wanted)
        return
    message = f"is_distributed=True: dividing files among the {processes} processes of a group is not supported"
    hint = "set RUNAI_STREAMER_DIST=0, or pass is_distributed=False: each process then reads all of its tensors"
    raise advise(UnsupportedError, message, hint)


def _group() -> tuple[int, str]:
    """Return the size of the default process group, and its backend; `(1, "")` without one."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return 1, ""
    return distributed.get_world_size(), distributed.get_backend()
