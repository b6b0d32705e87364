"""Sharded states of vLLM, as `ShardedStateLoader.save_model` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm.config import get_current_vllm_config_or_none
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf

from tload._engines.sharded import Pattern, Ranks
from tload._errors import InvalidRequestError, advise
from tload.vllm import _state

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    import torch
    from vllm.config import ModelConfig
    from vllm.config.load import LoadConfig

    from tload.vllm._settings import Settings
    from tload.vllm._weights import OpenBar


def folder_of(model_config: ModelConfig, load_config: LoadConfig) -> str:
    """Return the directory of a model, downloaded if it is the name of one of the Hub."""
    place: str = getattr(model_config, "model_weights", None) or model_config.model
    if Path(place).is_dir():
        return place
    folder: str = download_weights_from_hf(
        place,
        load_config.download_dir,
        ["*.safetensors"],
        model_config.revision,
        ignore_patterns=load_config.ignore_patterns,
    )
    return folder


def load(
    place: str | Sequence[str], model: torch.nn.Module, settings: Settings, open_bar: OpenBar, logger: logging.Logger
) -> None:
    """Load this rank's files into the model.

    Raises:
        InvalidRequestError: Two ranks would share a file.
        RuntimeError: The load failed.
    """
    pattern = Pattern(settings.pattern, _ranks())
    state = ShardedStateLoader._filter_subtensors(model.state_dict())  # noqa: SLF001
    _state.load(place, state, settings, pattern, open_bar=open_bar, logger=logger)


def _ranks() -> Ranks:
    tensor, pipeline = parallel_state.get_tp_group(), parallel_state.get_pp_group()
    ranks = Ranks(tensor.rank_in_group, tensor.world_size, pipeline.rank_in_group, pipeline.world_size)
    config = get_current_vllm_config_or_none()
    parallel = None if config is None else config.parallel_config
    if parallel is not None and parallel.enable_expert_parallel and parallel.data_parallel_size > 1:
        name = Pattern(None, ranks).first()
        message = f"ranks of data parallelism have different experts, and would share {name!r} of a sharded state"
        raise advise(InvalidRequestError, message, "load a checkpoint, or leave expert parallelism out")
    return ranks
