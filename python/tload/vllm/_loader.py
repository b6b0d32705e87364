"""vLLM's model loader: its own choice of files and weights and its errors, read by tload."""

from __future__ import annotations

import copy
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.config import get_current_vllm_config_or_none
from vllm.distributed import parallel_state
from vllm.logger import init_logger
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

from tload._errors import InvalidRequestError, advise
from tload._sources.opened import show
from tload.vllm import _settings, _weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from torch.distributed import ProcessGroup
    from vllm.config import ModelConfig
    from vllm.config.load import LoadConfig

    Weights = Iterator[tuple[str, torch.Tensor]]

# A child of vLLM's logger, whose handlers print its records.
logger = init_logger("vllm.tload")


class TloadModelLoader(DefaultModelLoader):  # type: ignore[misc]  # type checks run without vLLM
    """Loads safetensors with tload, and leaves all other files to `DefaultModelLoader`."""

    _loaded_from: ClassVar[weakref.WeakKeyDictionary[torch.nn.Module, str]] = weakref.WeakKeyDictionary()
    """Name of each model when `source` was loaded into it: a reload may use another location."""

    counter_before_loading_weights: float
    _starts = False
    """True from the start of the engine, when all ranks load the served model."""

    def __init__(self, load_config: LoadConfig) -> None:
        """Check the extra config.

        Raises:
            InvalidRequestError: A key is unknown, or a value has the wrong type or is invalid. It
                is a `ValueError`.
        """
        runai = load_config.load_format == "runai_streamer"
        self._settings = _settings.read(
            load_config.model_loader_extra_config, engine_keys=("enable_weights_track",), runai=runai
        )
        strategy = load_config.safetensors_load_strategy
        if strategy is not None and not runai:
            message = f"safetensors_load_strategy={strategy!r} is for vLLM's own loader, and has no effect in tload"
            raise advise(InvalidRequestError, message, "leave --safetensors-load-strategy out")
        if self._settings.ignored:
            logger.info_once("tload tunes these by itself, and ignores: %s", ", ".join(self._settings.ignored))
        # The parent resolves models as for "auto", and refuses keys that it does not know.
        own = copy.copy(load_config)
        own.load_format = "auto"
        own.model_loader_extra_config = dict(self._settings.engine)
        super().__init__(own)

    def download_model(self, model_config: ModelConfig) -> None:
        if self._place(model_config) is None:
            super().download_model(model_config)

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        self._loaded_from[model] = model_config.model
        self._starts = getattr(model_config, "runner_type", None) != "draft"
        super().load_weights(model, model_config)

    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Weights:
        place = self._place(model_config, model)
        if place is None:
            yield from super().get_all_weights(model_config, model)
            return
        patterns = getattr(model, "allow_patterns_overrides", None)
        unused = getattr(model, "is_unused_checkpoint_weight", None)
        if isinstance(place, str) and Path(place).is_dir():
            pt = getattr(model, "fall_back_to_pt_during_load", True)
            folder = self.Source(
                place, None, fall_back_to_pt=pt, allow_patterns_overrides=patterns, is_unused_weight=unused
            )
            yield from self._get_weights_iterator(folder)
        elif patterns is not None:
            message = f"{type(model).__name__} chooses files by its own patterns, which URLs and lists do not support"
            raise advise(InvalidRequestError, message, "load it from a directory")
        else:
            self._start_clock()
            yield from self._stream(place, show(place), unused=unused)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def _get_weights_iterator(self, source: DefaultModelLoader.Source) -> Weights:
        folder, files, use_safetensors, index_file = self._prepare_weights(
            source.model_or_path,
            source.subfolder,
            source.revision,
            source.fall_back_to_pt,
            source.allow_patterns_overrides,
        )
        torchao = self.load_config.safetensors_load_strategy == "torchao"  # detected by the parent
        if torchao or not use_safetensors:
            what = "torchao tensors" if torchao else "files other than safetensors"
            self._settings.refuse_others(f"`{source.model_or_path}`: {what}", "vLLM")
            logger.warning("`%s` has %s, which vLLM's own loader reads instead of tload", source.model_or_path, what)
            return super()._get_weights_iterator(source)  # type: ignore[no-any-return]
        _weights.tell_others(folder, files, logger)
        prefixes = getattr(self, "_encoder_only_lm_prefixes", None)
        if prefixes is not None:
            files = weight_utils.filter_mm_encoder_only_safetensors_files(
                files, folder, index_file, prefixes, weights_mapper=self._encoder_only_weights_mapper
            )
            if not files:
                message = f"mm-encoder-only shard filter removed all weight files for `{source.model_or_path}`"
                raise RuntimeError(message)
        self._start_clock()
        weights = self._stream(
            sorted(files, key=_weights.natural), source.model_or_path, unused=source.is_unused_weight
        )
        return ((source.prefix + name, tensor) for name, tensor in weights)

    def _stream(self, source: str | Sequence[str], shown: str, *, unused: _weights.Keep | None) -> Weights:
        experts = self.local_expert_ids
        return _weights.stream(
            source,
            self._settings,
            shown=shown,
            open_bar=self._bar,
            logger=logger,
            ranks=_ranks_here(),
            process_group=_process_group(starts=self._starts),
            keep=None if experts is None else lambda name: not should_skip_weight(name, experts),
            unused=unused,
        )

    def _bar(self, total: int) -> Any:
        return weight_utils.tqdm(
            total=total,
            desc="Loading safetensors using tload",
            disable=not weight_utils.enable_tqdm(self.load_config.use_tqdm_on_load),
            # Whole lines, which output of other processes does not garble.
            bar_format=weight_utils._BAR_FORMAT,  # noqa: SLF001
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            mininterval=1.0,
        )

    def _start_clock(self) -> None:
        # As in the parent, for its log line with the duration.
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()

    def _place(self, model_config: ModelConfig, model: torch.nn.Module | None = None) -> str | Sequence[str] | None:
        """Return the location of a model's weights, or `None` if vLLM has to find them by name."""
        source = self._settings.source
        moved = model is not None and self._loaded_from.get(model, model_config.model) != model_config.model
        if source is not None and _is_target(model_config) and not moved:
            return source
        weights = getattr(model_config, "model_weights", None)
        return weights if _settings.is_url(weights) else None


def _is_target(model_config: ModelConfig) -> bool:
    """Return whether it is the served model, and not a draft model with weights of its own."""
    config = get_current_vllm_config_or_none()
    if config is None:
        return True
    speculative = config.speculative_config
    target = config.model_config if speculative is None else speculative.target_model_config
    return target is None or bool(model_config.model == target.model)


def _ranks_here() -> int:
    """Count the processes of this machine that load the same files."""
    config = get_current_vllm_config_or_none()
    if config is None:
        return 1
    parallel = config.parallel_config
    return int(parallel.local_world_size) * max(1, int(parallel.data_parallel_size_local))


def _process_group(*, starts: bool) -> ProcessGroup | None:
    """Return the ranks that load the same weights at the same time, or `None` if there are none.

    When the engine starts, these are all. Only the last stage of a pipeline loads a draft model, and
    each replica reloads its weights by itself: then they are those of tensor parallelism.
    """
    config = get_current_vllm_config_or_none()
    if config is not None and getattr(config.parallel_config, "enable_elastic_ep", False):
        starts = False  # replicas come and go
    try:
        ranks = parallel_state.get_world_group() if starts else parallel_state.get_tp_group()
    except AssertionError:  # not initialized
        return None
    group: ProcessGroup = ranks.cpu_group
    return group
