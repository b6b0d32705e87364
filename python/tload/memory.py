"""Memory that the process keeps after loads have ended."""

from __future__ import annotations

from tload._tload import parked_bytes, release_staging

__all__ = ["parked_bytes", "release_staging"]
