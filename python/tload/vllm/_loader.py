"""vLLM's model loader: its own choice of files and weights and its errors, read by tload."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.config import get_current_vllm_config_or_none
from vllm.distributed import parallel_state
from vllm.logger import init_logger
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.platforms import current_platform

from tload._engines import planned
from tload._engines import reload as reloading
from tload._engines import watch as arming
from tload._errors import InvalidRequestError, NotFoundError, advise
from tload._load.collections import no_collections
from tload._sources.opened import show
from tload.vllm import _parameters, _plan, _settings, _sharded, _weights

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Sequence

    import torch
    from torch.distributed import ProcessGroup
    from vllm.config import ModelConfig
    from vllm.config.load import LoadConfig

    Weights = Generator[tuple[str, torch.Tensor], None, None]

# A child of vLLM's logger, whose handlers print its records.
logger = init_logger("vllm.tload")


@dataclass(frozen=True, slots=True)
class _Served:
    """A model that has weights."""

    first: str
    """Name of the model when it was loaded first: then `source` is another name for it."""
    place: dict[str, Any]
    """Fields of the configuration that name the weights."""
    loaded: reloading.Loaded
    parameters: Collection[str]
    """Names of the parameters of the first load that got weights."""
    strategy: str | None
    """The way in which vLLM's own loader reads the files, if it has found that only it can."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The weights of one source."""

    weights: _weights.Weights | Weights
    prefix: str
    shown: str

    def __iter__(self) -> Weights:
        return ((self.prefix + name, tensor) for name, tensor in self.weights)

    def entries(self) -> Iterator[tuple[str, reloading.Entry]]:
        """Yield the tensors, or nothing if vLLM reads the files."""
        if isinstance(self.weights, _weights.Weights):
            for name, info in self.weights.infos.items():
                yield self.prefix + name, (info.dtype, info.shape)


@contextlib.contextmanager
def _all_ranks_or_none() -> Iterator[None]:
    """Let no rank of a model reload unless all can: each gives its old weights up for itself.

    Raises:
        InvalidRequestError: Another one cannot.
    """
    try:
        yield
    except Exception as error:
        _refusal(f"{type(error).__name__}: {error}")
        raise
    refused = _refusal(None)
    if refused is not None:
        hint = "see the error of that rank; the model still has its old weights"
        message = f"another rank cannot reload: {refused}"
        raise advise(InvalidRequestError, message, hint)


def _refusal(own: str | None) -> str | None:
    """Tell the other ranks of the model why this one cannot reload, if so, and return why any cannot."""
    import torch

    for ranks in (parallel_state.get_tp_group(), parallel_state.get_pp_group()):
        if ranks.world_size > 1:
            found: list[str | None] = [None] * ranks.world_size
            torch.distributed.all_gather_object(found, own, group=ranks.cpu_group)
            own = next(filter(None, found), None)
    return own


class TloadModelLoader(DefaultModelLoader):  # type: ignore[misc]  # type checks run without vLLM
    """Loads safetensors with tload, and leaves all other files to `DefaultModelLoader`."""

    _served: ClassVar[weakref.WeakKeyDictionary[torch.nn.Module, _Served]] = weakref.WeakKeyDictionary()
    """Models with weights. A reload has a loader of its own."""

    counter_before_loading_weights: float
    _watch: arming.Watch | None = None
    """Watch over `load_weights` while it runs: the model has no weights that a failure could destroy."""
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
            if self._settings.sharded_state:
                _sharded.folder_of(model_config, self.load_config)
            else:
                super().download_model(model_config)

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        if self._settings.sharded_state:
            place = self._place(model_config) or _sharded.folder_of(model_config, self.load_config)
            self._start_clock()
            _sharded.load(place, model, self._settings, self._bar, logger)
            return
        self._starts = getattr(model_config, "runner_type", None) != "draft"
        self._served.pop(model, None)
        # Before the weights are requested: by then the parent has looked the model's method up.
        self._watch = self._watching(model, model_config)
        arming.arm(model, self._watch)
        try:
            super().load_weights(model, model_config)
        finally:
            self._watch = None
            arming.disarm(model)

    def get_all_weights(self, model_config: ModelConfig, model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        """Open the weights, and return an iterator of them.

        For a reload, vLLM gives the old weights up when this has returned. All that can be known
        without reading tensors is therefore checked here.
        """
        if self._settings.sharded_state:
            message = "a sharded state cannot be reloaded: it has the weights as vLLM has processed them"
            raise advise(InvalidRequestError, message, "start vLLM again; the model still has its old weights")
        served = self._served.get(model)
        first = model_config.model if served is None else served.first
        if served is None:
            parts, entries = self._open_checked(model_config, model, None)
        else:
            parts = []
            try:
                with _all_ranks_or_none():
                    parts, entries = self._open_checked(model_config, model, served)
            except BaseException:
                for part in parts:
                    part.weights.close()
                # vLLM has put the location of the reload there. The next one may name none.
                for name, value in served.place.items():
                    setattr(model_config, name, value)
                raise
        place = {name: getattr(model_config, name, None) for name in ("model", "model_weights", "revision")}

        def done(used: set[str] | None, names: Collection[str]) -> None:
            loaded = reloading.Loaded.of(entries, used, None if served is None else served.loaded)
            strategy = self.load_config.safetensors_load_strategy
            self._served[model] = _Served(first, place, loaded, names, strategy)

        watch = self._watch
        if watch is None:
            watch = self._watching(model, model_config)
            watch.replaces = served is not None
            watch.known = None if served is None else served.parameters
            arming.arm(model, watch)
        watch.shown, watch.present, watch.done = parts[0].shown, entries, done
        weights = itertools.chain.from_iterable(parts)
        watch.attempt = self._attempt(weights, parts, model_config, watch.shown)
        return weights

    def _open_checked(
        self, model_config: ModelConfig, model: torch.nn.Module, served: _Served | None
    ) -> tuple[list[_Part], dict[str, reloading.Entry]]:
        """Open all weights, and check that they can replace those that are served."""
        if served is not None and served.strategy is not None:
            # vLLM looks for it when it loads, which this loader of a reload has not done.
            self.load_config.safetensors_load_strategy = served.strategy
        with no_collections(), contextlib.ExitStack() as opened:
            parts = self._open_all(model_config, model)
            for part in parts:
                opened.callback(part.weights.close)
            entries = {name: entry for part in parts for name, entry in part.entries()}
            if served is not None and self._settings.missing_weights == "error":
                reloading.check(served.loaded, entries, parts[0].shown)
            opened.pop_all()
        return parts, entries

    def _attempt(
        self, weights: Iterator[tuple[str, torch.Tensor]], parts: Sequence[_Part], model_config: ModelConfig, shown: str
    ) -> planned.Attempt | None:
        """Return the load by a plan, if all weights are of one source, and tload reads it."""
        own = parts[0].weights
        if len(parts) > 1 or parts[0].prefix or not isinstance(own, _weights.Weights):
            return None
        locations = [shard.location for shard in own.opened.checkpoint.shards]
        folder = planned.folder(locations, self._settings.store, self._settings.plan)
        if folder is None:
            return None
        return planned.Attempt(
            weights=weights,
            source=own,
            about=lambda model: _plan.about(model, model_config),
            records=self._watch is not None,
            folder=folder,
            shown=shown,
            logger=logger,
        )

    def _watching(self, model: torch.nn.Module, model_config: ModelConfig) -> arming.Watch:
        draft = getattr(model_config, "runner_type", None) == "draft"
        mode = self._settings.missing_weights
        return arming.Watch(
            shown=show(model_config.model),
            # Drafts take what they lack from their target model, later.
            missing_weights="warn" if draft and mode == "error" else mode,
            logger=logger,
            describe=_parameters.describer(model),
            parts=getattr(model, "packed_modules_mapping", None) or {},
        )

    def _open_all(self, model_config: ModelConfig, model: torch.nn.Module) -> list[_Part]:
        """Open the model's own weights and those beside them."""
        place = self._place(model_config, model)
        patterns = getattr(model, "allow_patterns_overrides", None)
        unused = getattr(model, "is_unused_checkpoint_weight", None)
        if place is None or (isinstance(place, str) and Path(place).is_dir()):
            folder = self.Source(
                model_config.model if place is None else place,
                model_config.revision if place is None else None,
                fall_back_to_pt=getattr(model, "fall_back_to_pt_during_load", True),
                allow_patterns_overrides=patterns,
                is_unused_weight=unused,
            )
            parts = [self._open_source(folder)]
        elif patterns is not None:
            message = f"{type(model).__name__} chooses files by its own patterns, which URLs and lists do not support"
            raise advise(InvalidRequestError, message, "load it from a directory")
        else:
            self._start_clock()
            parts = [_Part(self._stream(place, show(place), unused=unused), "", show(place))]
        return parts + [self._open_source(source) for source in getattr(model, "secondary_weights", ())]

    def _get_weights_iterator(self, source: DefaultModelLoader.Source) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._open_source(source))

    def _open_source(self, source: DefaultModelLoader.Source) -> _Part:
        if os.path.isabs(source.model_or_path) and not Path(source.model_or_path).exists():  # noqa: PTH117
            message = f"`{source.model_or_path}`: there is no such directory"
            raise advise(NotFoundError, message, "name a directory, a model of the Hub, or a URL")
        _weights.refuse_gguf(source.model_or_path, "vLLM")
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
            return _Part(super()._get_weights_iterator(source), "", show(source.model_or_path))  # with the prefix
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
        return _Part(weights, source.prefix, show(source.model_or_path))

    def _stream(self, source: str | Sequence[str], shown: str, *, unused: _weights.Keep | None) -> _weights.Weights:
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
            on_cpu=current_platform.is_cpu(),
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
        served = None if model is None else self._served.get(model)
        moved = served is not None and served.first != model_config.model
        if source is not None and _is_target(model_config) and not moved:
            return source
        if _settings.is_url(model_config.model):
            return str(model_config.model)  # of a reload: vLLM starts with no URL, except Run:ai's
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
