"""Random reads: single tensors of an open checkpoint, into memory of the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from tload import _tload
from tload._errors import InvalidRequestError, advise
from tload._options.keywords import OptionKeywords
from tload._options.load_options import is_strict, resolve
from tload._sources.opened import usable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Self

    import numpy.typing as npt
    import torch

    from tload._options.load_options import Options
    from tload._sources.opened import Opened
    from tload.typing import Index

    Key: TypeAlias = str | tuple[str, Index]
    Memory: TypeAlias = torch.Tensor | npt.NDArray[Any] | bytearray | memoryview
    Buffers: TypeAlias = Mapping[Any, Memory] | Iterable[tuple[Key, Memory]]  # keys of mappings are invariant

VARIABLES = ("engine", "cache", "depth", "extent_bytes", "memory_limit", "retries", "hedge", "timeout")
"""Options that count for readers, also from the environment."""


class Reading:
    """Reads that have begun. Made by `Reader.submit`.

    Until they have been waited for or cancelled, their buffers must not be used. When the last
    reference to it is dropped, they are cancelled.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: _tload.Reading) -> None:
        """Wrap what a reader has begun."""
        self._raw = raw

    def wait(self) -> None:
        """Wait until all bytes are there. May be called once.

        Raises:
            InvalidRequestError: They have been waited for or cancelled already.
            IoError, ChangedError, RemoteError: While reading; the buffers then have any contents.
        """
        self._raw.wait()

    def cancel(self) -> None:
        """Cancel the reads. Nothing writes to their buffers once this returns."""
        self._raw.cancel()


class Reader:
    """Reads single tensors into memory of the caller. Made by `Checkpoint.reader`.

    It keeps files, engines and threads, so a read costs microseconds beside the transfer. Any number
    of threads may use it, and up to eight calls read at a time. A process that was forked since has
    to make its own.
    """

    __slots__ = ("_location", "_raw")

    def __init__(self, checkpoint: Opened, options: Options | None = None) -> None:
        """Open the files of a checkpoint for reads."""
        self._location = checkpoint.location
        resolved = resolve(options, OptionKeywords(), variables=VARIABLES)
        if is_strict(resolve(options, OptionKeywords(), variables=("verify",))):
            message = f"{self._location}: what a reader reads cannot be verified, as verify= requires"
            hint = "set verify to auto or off, and verify the checkpoint before"
            raise advise(InvalidRequestError, message, hint)
        if resolved.dtype is not None:
            message = f"{self._location}: dtype= has no effect on a reader, which reads bytes as they are in the file"
            raise advise(InvalidRequestError, message, "leave dtype= out, and convert the tensors")
        self._raw: _tload.Reader | None = _tload.Reader(usable(checkpoint), resolved)

    def submit(self, buffers: Buffers) -> Reading:
        """Begin to read tensors, all at once, each into its own buffer.

        Args:
            buffers: Buffers by name, or by name and index, or pairs of these: of a fused tensor of
                experts, `("experts.w1", 3)` is the fourth. (Slices cannot be keys before Python
                3.12: pass pairs.) The index must select bytes that are beside each other in the
                file. A buffer is a torch tensor, a numpy array, or anything with a
                writable buffer (`bytearray`, `memoryview`, `mmap`), contiguous, on the host, and as
                long as what is read into it. Only lengths are compared, not dtypes.

        Returns:
            The reads, to be waited for.

        Raises:
            NoSuchTensorError: The checkpoint has no tensor of this name.
            InvalidRequestError: A buffer has another length or is on a GPU, an index selects bytes
                with gaps, or the reader is closed or from before a fork.
            IndexError: An index is out of range.
            TypeError, BufferError: A value is no buffer, is read-only, or is not contiguous.
        """
        if self._raw is None:
            raise advise(InvalidRequestError, f"{self._location}: the reader is closed", "make another one")
        pairs = buffers.items() if isinstance(buffers, Mapping) else buffers
        named = (((key, None) if isinstance(key, str) else key, buffer) for key, buffer in pairs)
        return Reading(self._raw.submit([(*key, buffer) for key, buffer in named]))

    def read_into(self, buffers: Buffers) -> None:
        """Read tensors, all at once, each into its own buffer, and wait for them.

        Args:
            buffers: As for `submit`.

        Raises:
            NoSuchTensorError, InvalidRequestError, IndexError, TypeError, BufferError: As `submit`.
            IoError, ChangedError, RemoteError: While reading; the buffers then have any contents.
        """
        self.submit(buffers).wait()

    def close(self) -> None:
        """Close the files, once all reads have ended."""
        self._raw = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = ", closed" if self._raw is None else ""
        return f"<tload.Reader {self._location!r}{closed}>"
