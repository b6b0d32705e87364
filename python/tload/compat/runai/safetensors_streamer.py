"""Tensor streaming with the interface of `runai_model_streamer.SafetensorsStreamer`."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import tload
from tload import InvalidRequestError
from tload._errors import advise
from tload.compat.runai import environment
from tload.compat.runai.closing import Closing
from tload.compat.runai.distributed_streamer import group_of_ranks
from tload.compat.runai.errors import value_errors
from tload.compat.runai.file_streamer import device_name
from tload.compat.runai.object_storage import ObjectStorageModel, list_safetensors, pull_files
from tload.compat.runai.safetensors_pytorch import open_files
from tload.compat.runai.stores import S3Credentials, kind_of_all

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator

    import torch

    from tload._options.keywords import OptionKeywords
    from tload.compat.runai.safetensors_pytorch import OpenFiles, SafetensorMetadata
    from tload.compat.runai.stores import Kind

__all__ = ["ObjectStorageModel", "S3Credentials", "SafetensorsStreamer", "list_safetensors", "pull_files"]

_logger = logging.getLogger(__name__)

SAFETENSORS_PATTERN = "*.safetensors"
"""Constant of runai_model_streamer, which programs import. Nothing here uses it."""


class SafetensorsStreamer(Closing):
    """Streams the tensors of one set of files at a time.

    A context manager that stops reading at its end.

    The caller owns every tensor, whatever the value of `owned`: its memory is valid as long as it
    is referenced, also after the next one, after the end of the `with` block, and on a GPU. A
    tensor need not be cloned to keep it, and keeping a small one keeps at most about 1 MiB beside
    it; on a GPU, at most 64 MiB (`tload.Options.region_bytes`). Tensors are aligned for their dtype.

    Attributes:
        files_to_tensors_metadata: The tensors that `stream_files` streams, by the index of their
            file.
        total_size: Bytes of these tensors.
        device_str: Their device.
    """

    def __init__(self) -> None:
        """Make an idle streamer."""
        self.files_to_tensors_metadata: dict[int, list[SafetensorMetadata]] = {}
        self.total_size = 0
        self.device_str: str = "cpu"
        self._streams: Generator[tload.TensorStream[torch.Tensor]] | None = None
        self._stream: tload.TensorStream[torch.Tensor] | None = None
        self._began = 0.0

    def stream_file(  # noqa: PLR0917  # the signature is theirs
        self,
        path: str,
        s3_credentials: S3Credentials | None = None,
        device: str | torch.device | None = "cpu",
        is_distributed: bool = False,  # noqa: FBT001, FBT002
        tensor_names: Collection[str] | None = None,
        owned: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        """Start to read the tensors of one file: see `stream_files`."""
        self.stream_files([path], s3_credentials, device, is_distributed, tensor_names, owned)

    def stream_files(  # noqa: PLR0917
        self,
        paths: list[str],
        s3_credentials: S3Credentials | None = None,
        device: str | torch.device | None = "cpu",
        is_distributed: bool = False,  # noqa: FBT001, FBT002
        tensor_names: Collection[str] | None = None,
        owned: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        """Start to read the tensors of files.

        Args:
            paths: The files, local ones or all of one kind of store: `s3://…`, `gs://…` or
                `az://…`.
            s3_credentials: Options of S3. Default: from the environment.
            device: Device of the tensors. Tensors are read to CUDA devices directly; to others,
                they are copied with `tensor.to(device)`. Default: `"cpu"`.
            is_distributed: Read once per node, together with the other processes of torch's
                default group, all of which must make the same calls. `tensor_names` may differ.
                Where there is no group, this process reads alone. Default: `False`.
            tensor_names: Read only the tensors with these names. Default: all.
            owned: Ignored: the caller always owns its tensors.

        Raises:
            ValueError: A file cannot be opened, or is not a valid safetensors file; a name of
                `tensor_names` is in no file, or in several; the tensors of an earlier call have not
                all been taken.
            RunaiStreamerInvalidInputException: torch does not know the device, or files and stores
                are mixed.
            RunaiStreamerMemoryLimitException: RUNAI_STREAMER_MEMORY_LIMIT is smaller than the
                largest tensor.
            PeerError: With `is_distributed`, a process does not join, has other files or options,
                or reads for this one and is gone.
            DeviceError, OutOfMemoryError: As for `tload.stream`.
        """
        del owned
        names = _names(tensor_names)
        if self._streams is not None:
            message = "the tensors of an earlier stream_files are outstanding"
            hint = "take them with get_tensors(), or close its generator, before the next stream_files"
            raise advise(InvalidRequestError, message, hint)
        self.device_str = device_name(device)
        self._began = time.monotonic()
        # First, so that a process that fails below has left the group, and the others do not wait.
        group = group_of_ranks(is_distributed=is_distributed)
        try:
            opened = open_files(paths, s3_credentials, group)
            self._select(opened, names)
            self._streams = self._start(opened, names, self._options(kind_of_all(paths), opened, group), group)
            # Everything that can fail before the first read is done here.
            with value_errors():
                self._stream = next(self._streams, None)
        except BaseException:
            self._close()
            if group is not None:
                group.close()
            raise
        if self._stream is None:
            self._close()

    def get_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield `(name, tensor)` as they become complete, in any order.

        Leaving the iteration stops the reading.

        A name that is in several files is yielded once for each.

        Raises:
            ValueError: Reading failed; its `__cause__` is tload's exception, unless that is a
                `ValueError` itself.
        """
        # Local variables: the streamer may stream other files when this generator ends.
        stream, streams, brought = self._stream, self._streams, self._is_brought()
        try:
            while stream is not None and streams is not None:
                with value_errors():
                    item = next(stream, None)
                    if item is None:
                        stream = next(streams, None)
                        continue
                name, tensor = item
                yield name, tensor if brought else tensor.to(self.device_str)
                # The caller owns it, so it is not kept until the next tensor arrives.
                del item, tensor
            self._log_rate()
        finally:
            self._end(streams)

    def _select(self, opened: OpenFiles, names: frozenset[str] | None) -> None:
        if names is not None:
            found = {tensor.name for tensors in opened.files for tensor in tensors}
            if missing := sorted(names - found):
                message = f"tensor_names: no file has {missing}"
                raise InvalidRequestError(message)
            if repeated := sorted(names & opened.repeated()):
                message = f"tensor_names: {repeated} are in several files, so it is not clear which are wanted"
                raise InvalidRequestError(message)
        self.files_to_tensors_metadata = {
            index: [tensor for tensor in tensors if names is None or tensor.name in names]
            for index, tensors in enumerate(opened.files)
        }
        self.total_size = sum(
            tensor.get_bytesize() for tensors in self.files_to_tensors_metadata.values() for tensor in tensors
        )

    def _options(self, kind: Kind, opened: OpenFiles, group: tload.Group | None) -> OptionKeywords:
        options = environment.options(kind)
        # The limit of a group is equal on all processes, whatever names they want.
        files = opened.files if group else self.files_to_tensors_metadata.values()
        sizes = [tensor.get_bytesize() for tensors in files for tensor in tensors]
        # Half of it is for shared memory, and each process gets its part of the other half.
        parts = 2 * group.size if group else 1
        limit = environment.memory_limit(sizes * parts)
        if limit is not None:
            least = max(sizes, default=0) + environment.REGION_BYTES
            options["memory_limit"] = max(
                limit, parts * (least if self.device_str == "cpu" else environment.STAGING_BYTES)
            )
        if group:
            options |= environment.group_options()
        return options

    def _start(
        self, opened: OpenFiles, names: frozenset[str] | None, options: OptionKeywords, group: tload.Group | None
    ) -> Generator[tload.TensorStream[torch.Tensor]]:
        """Yield one stream after another, so that only one uses memory at a time."""
        device = self.device_str if self._is_brought() else "cpu"
        with opened, group or nullcontext():
            # A process may want nothing of one of several checkpoints, and joins no load of it. All
            # of them decide alike, whatever names they want.
            together = group if len(opened.checkpoints) == 1 else None
            for checkpoint in opened.checkpoints:
                wanted = None if names is None else [name for name in checkpoint if name in names]
                if wanted is None or wanted:
                    with tload.stream(checkpoint, device=device, names=wanted, group=together, **options) as stream:
                        yield stream

    def _is_brought(self) -> bool:
        """Return whether tload reads to the device.

        Builds of torch for other GPUs call theirs `cuda`, too.
        """
        import torch

        kind = torch.device(self.device_str).type
        return kind == "cpu" or (kind == "cuda" and torch.version.cuda is not None)

    def _log_rate(self) -> None:
        if self._began:
            seconds = max(time.monotonic() - self._began, 1e-9)
            rate = self.total_size / seconds / 1e9
            files = len(self.files_to_tensors_metadata)
            _logger.info(
                "streamed %d bytes of %d file(s) to %s in %.2f s: %.2f GB/s",
                self.total_size,
                files,
                self.device_str,
                seconds,
                rate,
            )
            self._began = 0.0

    def _close(self) -> None:
        self._end(self._streams)

    def _end(self, streams: Generator[object] | None) -> None:
        if streams is not None:
            streams.close()
        if streams is self._streams:
            self._stream = self._streams = None


def _names(names: Collection[str] | None) -> frozenset[str] | None:
    if names is None:
        return None
    if isinstance(names, str):
        message = f"tensor_names: wanted a collection of names, found one str, {names!r}"
        raise InvalidRequestError(message)
    if not names:
        raise advise(InvalidRequestError, "tensor_names is empty", "pass None for all tensors")
    return frozenset(names)
