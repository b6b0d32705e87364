"""The timeout of a load, which also bounds the opening of its checkpoint."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

import tload
from conftest import require

if TYPE_CHECKING:
    from servers import Web


@pytest.mark.parametrize("way", ["open", "safe_open", "from_pretrained", "StorageReader"])
def test_timeout_of_a_load_bounds_opening(way: str, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, not in the minutes that the retries of a store take."""
    web.files["a.safetensors"] = bytes(64)
    web.stall_from = 0
    url, store = f"{web.url}/a.safetensors", {"read_timeout": 5, "retries": 0}
    # Any stage of the opening may be the one that it ends.
    options = tload.Options(timeout="200ms")

    def begin() -> object:
        if way == "from_pretrained":
            transformers = require("transformers")
            config = transformers.LlamaConfig()
            model = transformers.LlamaForCausalLM
            return importlib.import_module("tload.transformers").from_pretrained(
                model, url, config=config, store=store, options=options
            )
        if way == "StorageReader":
            require("torch")
            return importlib.import_module("tload.dcp").StorageReader(url, store=store, options=options).read_metadata()
        monkeypatch.setenv("TLOAD_TIMEOUT", "200ms")
        if way == "safe_open":
            require("numpy")
            return importlib.import_module("tload.safetensors").safe_open(url, "np", store=store)
        return tload.open(url, store=store)

    with pytest.raises(TimeoutError, match="opening took longer than its timeout"):
        begin()
