"""The plugin for SGLang without SGLang: the error names what is missing. Other tests are in
`with_sglang/`."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

import tload.sglang


def test_missing_sglang_raises_readable_error() -> None:
    if importlib.util.find_spec("sglang") is not None:
        pytest.skip("SKIPPED: this test is for machines without SGLang")
    with pytest.raises(ImportError, match="sglang"):
        tload.sglang.register()
    with pytest.raises(ImportError, match="sglang"):
        _ = tload.sglang.TloadModelLoader


def test_unknown_attribute_raises() -> None:
    module: Any = tload.sglang
    with pytest.raises(AttributeError, match="has no attribute 'TloadLoader'"):
        _ = module.TloadLoader
