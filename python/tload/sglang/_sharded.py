"""Sharded and presharded states of SGLang, read by tload.

The model is made and its state chosen by SGLang's own code; only the reads differ.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.model_loader import loader as loaders
from sglang.srt.model_loader.loader import PreshardedModelLoader, ShardedStateLoader
from sglang.srt.runtime_context import get_parallel

import tload
from tload._engines.sharded import Pattern, Ranks
from tload._errors import Error, InvalidRequestError, NotFoundError, advise
from tload._sources.opened import show
from tload.vllm import _settings, _state, _weights

if TYPE_CHECKING:
    import logging

    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig

    from tload.vllm._settings import Settings
    from tload.vllm._weights import OpenBar

PRESHARDED_KEYS = ("presharded", "verify_on_load")
"""Keys of the extra config for SGLang's presharded layout. The second is SGLang's own."""


def is_presharded(settings: Settings) -> bool:
    """Return whether the settings ask for SGLang's presharded layout.

    Raises:
        InvalidRequestError: Its keys have values of other types, or they ask for a sharded state too.
    """
    for key in PRESHARDED_KEYS:
        value = settings.engine.get(key)
        if value is not None and not isinstance(value, bool):
            message = f"model_loader_extra_config: {key}: wanted a bool, found {type(value).__qualname__}"
            raise InvalidRequestError(message)
    found = bool(settings.engine.get("presharded"))
    if found and settings.sharded_state:
        message = "model_loader_extra_config: presharded and sharded_state are two layouts"
        raise advise(InvalidRequestError, message, "leave one of them out")
    if found and isinstance(settings.source, tuple):
        message = "model_loader_extra_config: a presharded source is a directory or its URL, not a list"
        raise InvalidRequestError(message)
    return found


def load_model(
    load_config: LoadConfig,
    model_config: ModelConfig,
    device_config: DeviceConfig,
    settings: Settings,
    *,
    open_bar: OpenBar,
    logger: logging.Logger,
) -> torch.nn.Module:
    """Make a model, and load this rank's files of a sharded state into it.

    Raises:
        InvalidRequestError: Two ranks would share a file.
        RuntimeError: The load failed.
    """
    parallel = get_parallel()
    ranks = Ranks(parallel.tp_rank, parallel.tp_size, parallel.pp_rank, parallel.pp_size)
    pattern = Pattern(settings.pattern or ShardedStateLoader.DEFAULT_PATTERN, ranks)
    own = copy.copy(load_config)
    own.model_loader_extra_config = {}
    place = _place(model_config, settings)
    if isinstance(place, str) and not _settings.is_url(place):
        # From the Hub, if it is a name there.
        place = ShardedStateLoader(own)._prepare_weights(place, model_config.revision)  # noqa: SLF001
    with loaders.set_default_torch_dtype(model_config.dtype), torch.device(device_config.device):
        quantization = loaders._get_quantization_config(model_config, load_config)  # noqa: SLF001
        model: torch.nn.Module = loaders._initialize_model(model_config, load_config, quantization)  # noqa: SLF001
        for _, module in model.named_modules():
            method = getattr(module, "quant_method", None)
            if method is not None:
                method.process_weights_after_loading(module)
        state = ShardedStateLoader._filter_subtensors(model.state_dict())  # noqa: SLF001
        _state.load(place, state, settings, pattern, open_bar=open_bar, logger=logger)
        loaders.post_load_weights(model)
    return model.eval()


def _place(model_config: ModelConfig, settings: Settings) -> Any:
    """Return the user's location of a state, unless it is a draft model, or that of the model."""
    if settings.source is None or model_config.is_draft_model:
        return model_config.model_path
    return settings.source


class PreshardedLoader(PreshardedModelLoader):  # type: ignore[misc]  # type checks run without SGLang
    """Reads states in SGLang's presharded layout, from all sources, and writes none."""

    def __init__(self, load_config: LoadConfig, settings: Settings) -> None:
        """Create a loader."""
        own = copy.copy(load_config)
        own.model_loader_extra_config = {"verify_on_load": bool(settings.engine.get("verify_on_load"))}
        super().__init__(own)
        self._settings = settings
        self._place = ""

    def load_model(self, *, model_config: ModelConfig, device_config: DeviceConfig) -> torch.nn.Module:
        """Make a model, and load this rank's tensors into it.

        Raises:
            RuntimeError: There is no state for this model and these ranks, or the load failed.
        """
        config = self._collect_shard_config(model_config)
        root = _place(model_config, self._settings)
        if root is model_config.model_path:
            root = f"{root}/{self.DEFAULT_SUBDIR}"
        self._place = f"{root.rstrip('/')}/{self._build_subfolder_name(config)}"
        try:
            with tempfile.TemporaryDirectory() as folder:
                self._copy_plan(folder)
                if not self._shard_config_matches(folder, config):
                    message = f"`{show(self._place)}` was saved with another model or configuration"
                    raise advise(InvalidRequestError, message, "save it again")
                loaded: torch.nn.Module = self._load_from_presharded(model_config, device_config, folder)
                return loaded
        except Error as error:
            message = f"tload cannot load the presharded state of `{show(self._place)}`: {error}"
            raise RuntimeError(message) from error

    def _copy_plan(self, folder: str) -> None:
        """Copy the small files, which SGLang itself reads. A state without `READY` is not complete."""
        try:
            for name in (self.READY_FILENAME, self.CHECKSUM_FILENAME):
                tload.copy(f"{self._place}/{name}", folder, store=self._settings.store)
        except NotFoundError as error:
            hint = (
                "save it with --load-format presharded, with the same sizes; its name has a digest of the model "
                "and of the configuration"
            )
            raise advise(NotFoundError, str(error).partition("\n")[0], hint) from error

    def _read_presharded_file(self, full_path: str, stored_keys: list[str]) -> dict[str, torch.Tensor]:
        name = Path(full_path).name  # from a file that anyone may have written: nothing but a name
        with _weights.open_source([f"{self._place}/{name}"], self._settings) as opened:
            return tload.load(opened, names=stored_keys, options=self._settings.for_ranks(1))
