"""Streaming by the processes of a group: which of them read together."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import tload
from tload.compat.runai import environment
from tload.compat.runai.closing import Closing
from tload.compat.runai.file_streamer import FileStreamer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tload.compat.runai.file_streamer import FileChunks
    from tload.compat.runai.stores import S3Credentials

__all__ = ["DistributedStreamer"]

_logger = logging.getLogger(__name__)

# Constants of runai_model_streamer, which programs import. Nothing here uses them.
DEFAULT_BROADCAST_TIMEOUT = timedelta(seconds=600)
DEFAULT_DIST_BUFFER_ALIGNMENT = 512
MAX_DIST_BUFFER_ALIGNMENT = 1 << 20
RUNAI_STREAMER_CUDA_ALIGNMENT_ENV_VAR = "RUNAI_STREAMER_CUDA_ALIGNMENT"


class DistributedStreamer(Closing):
    """A `FileStreamer` with the interface for dividing files among processes, which it does not do.

    With `is_distributed=True` too, every process reads all of its ranges: those of one machine
    share its page cache. `SafetensorsStreamer` reads once.
    """

    def __init__(self) -> None:
        """Make an idle streamer."""
        self.file_streamer = FileStreamer()

    def stream_files(
        self,
        file_stream_requests: list[FileChunks],
        credentials: S3Credentials | None,
        device: str | torch.device | None,
        is_distributed: bool,  # noqa: FBT001  # the signature is theirs
        owned: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        """Start to read ranges of files: see `FileStreamer.stream_files`."""
        if is_distributed:
            _logger.info("is_distributed=True: ranges of files are read by every process")
        self.file_streamer.stream_files(file_stream_requests, credentials, device, owned=owned)

    def get_chunks(self) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Yield `(id, index, tensor)` for each range: see `FileStreamer.get_chunks`."""
        return self.file_streamer.get_chunks()

    def _close(self) -> None:
        self.file_streamer._close()  # noqa: SLF001


def group_of_ranks(*, is_distributed: bool) -> tload.Group | None:
    """Return the processes that read together: those of torch's default group.

    `None` if this process reads alone: if it is not asked to share, or has no others to share with.
    No bytes travel over the group, so its backend and the device of the tensors do not matter.

    Raises:
        InvalidRequestError: RUNAI_STREAMER_DIST is neither 0, 1 nor auto.
    """
    if not is_distributed or not environment.is_shared():
        return None
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        _logger.info("is_distributed=True: this process reads alone, as torch.distributed has no other one")
        return None
    return tload.Group.torch()
