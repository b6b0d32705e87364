"""SGLang's model loader: its own choice of files and weights, read by tload."""

from __future__ import annotations

import copy
import logging
import os
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from sglang.srt.configs import load_config as load_configs
from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.model_loader import weight_utils
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.runtime_context import get_model, get_parallel

from tload._engines import planned
from tload._engines import reload as reloading
from tload._engines import watch as arming
from tload._errors import InvalidRequestError, NotFoundError, advise
from tload._sources.opened import show
from tload.sglang import _plan, _sharded
from tload.vllm import _parameters, _settings, _weights

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from sglang.srt.configs.load_config import LoadConfig
    from torch.distributed import ProcessGroup

    Weights = Iterator[tuple[str, torch.Tensor]]

logger = logging.getLogger(__name__)

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class _Served:
    """A model that has weights."""

    path: str
    loaded: reloading.Loaded
    parameters: Collection[str]
    """Names of the parameters of the first load."""


class TloadModelLoader(DefaultModelLoader):  # type: ignore[misc]  # type checks run without SGLang
    """Loads safetensors with tload, and leaves all other files to `DefaultModelLoader`."""

    _served: ClassVar[weakref.WeakKeyDictionary[Any, _Served]] = weakref.WeakKeyDictionary()
    """Models with weights, by their configurations. An update has a loader of its own."""

    counter_before_loading_weights: float

    def __init__(self, load_config: LoadConfig) -> None:
        """Check the extra config.

        Raises:
            InvalidRequestError: A key is unknown, or a value has the wrong type or is invalid. It
                is a `ValueError`.
        """
        keys = _sharded.PRESHARDED_KEYS
        self._settings = _settings.read(load_config.model_loader_extra_config, engine_keys=keys)
        self._is_presharded = _sharded.is_presharded(self._settings)
        # The parent resolves models as for "auto", and refuses keys that it does not know.
        own = copy.copy(load_config)
        own.load_format = LoadFormat.AUTO
        own.model_loader_extra_config = {}
        super().__init__(own)
        self._on_cpu = False
        self._config: Any = None
        self._shown = "the weights"
        self._entries: dict[str, reloading.Entry] = {}
        """Tensors that were opened for the model of `_config`."""
        self._watch: arming.Watch | None = None
        self._opened: tuple[Weights, _weights.Weights] | None = None
        """Iterator that SGLang has for the model of `_config`, and what it iterates over."""

    def _get_all_weights(self, model_config: Any, model: torch.nn.Module) -> Weights:
        if getattr(model, "secondary_weights", ()):
            return super()._get_all_weights(model_config, model)  # type: ignore[no-any-return]
        # Opened now, not with the first tensor: a load by a plan takes none.
        return self._get_weights_iterator(DefaultModelLoader.Source.init_new(model_config, model))

    def download_model(self, model_config: Any) -> None:
        if not (self._is_presharded or self._settings.sharded_state):
            super().download_model(model_config)

    def load_model(self, *, model_config: Any, device_config: Any) -> torch.nn.Module:
        config, settings = self.load_config, self._settings
        if self._is_presharded:
            presharded = _sharded.PreshardedLoader(config, settings)
            return presharded.load_model(model_config=model_config, device_config=device_config)
        if settings.sharded_state:
            return _sharded.load_model(config, model_config, device_config, settings, open_bar=_bar, logger=logger)
        self._on_cpu = torch.device(device_config.device).type == "cpu"
        loaded: torch.nn.Module = super().load_model(model_config=model_config, device_config=device_config)
        return loaded

    def load_weights_and_postprocess(self, model: torch.nn.Module, weights: Weights, target_device: Any) -> None:
        served = None if self._config is None else self._served.get(self._config)
        watch = self._watch = arming.Watch(
            shown=self._shown,
            missing_weights=self._settings.missing_weights,
            logger=logger,
            describe=_parameters.describer(model),
            parts=getattr(model, "packed_modules_mapping", None) or {},
            known=None if served is None else served.parameters,
            done=self._remember,
        )
        if served is not None and getattr(model, "quant_config", None) is not None and watch.missing_weights == "error":
            # By now, SGLang has brought quantized weights into other forms.
            watch.missing_weights = "warn"
        if served is not None and self._opened is not None and self._opened[0] is not weights:
            # SGLang picks tensors, as for experts that it recovers: the model keeps the others.
            watch.missing_weights, watch.done = "off", lambda _used, _names: None
        self._tell_watch()
        watch.attempt = self._attempt(weights, first=served is None)
        arming.arm(model, watch)
        try:
            super().load_weights_and_postprocess(model, weights, target_device)
        finally:
            arming.disarm(model)
            self._watch = None

    def _attempt(self, weights: Weights, *, first: bool) -> planned.Attempt | None:
        """Return the load by a plan, if these weights are of one source, and tload reads it."""
        if self._opened is None or self._opened[0] is not weights:
            return None
        source, config, load_config = self._opened[1], self._config, self.load_config
        locations = [shard.location for shard in source.opened.checkpoint.shards]
        folder = planned.folder(locations, self._settings.store, self._settings.plan)
        if folder is None:
            return None
        return planned.Attempt(
            weights=weights,
            source=source,
            about=lambda model: _plan.about(model, config, load_config),
            records=first,
            folder=folder,
            shown=self._shown,
            logger=logger,
        )

    def _tell_watch(self) -> None:
        """Tell what is known once the weights are open: before they are loaded, or while they are."""
        watch, config = self._watch, self._config
        if watch is None or config is None:
            return
        watch.shown, watch.present, watch.replaces = self._shown, self._entries, config in self._served
        if getattr(config, "is_draft_model", False) and watch.missing_weights == "error":
            watch.missing_weights = "warn"  # drafts take what they lack from their target model, later

    def _remember(self, used: set[str] | None, names: Collection[str]) -> None:
        if self._config is None:
            return
        # Weights of one layer of several for multi-token prediction are renamed.
        if self.load_config.draft_model_idx is not None:
            used = None
        served = self._served.get(self._config)
        loaded = reloading.Loaded.of(self._entries, used, None if served is None else served.loaded)
        self._served[self._config] = _Served(self._config.model_path, loaded, names)

    def _get_weights_iterator(self, source: DefaultModelLoader.Source, **keywords: Any) -> Weights:
        """Open the weights, and return an iterator of them.

        For an update, SGLang replaces the old weights while it iterates: all that can be known
        without reading tensors is checked before.
        """
        try:
            return self._open(source, **keywords)
        except BaseException:
            served = None if source.model_config is None else self._served.get(source.model_config)
            if served is not None:
                # SGLang has put the location of the update there.
                source.model_config.model_path = served.path
            raise

    def _open(self, source: DefaultModelLoader.Source, **keywords: Any) -> Weights:
        place = self._place(source)
        where = source.model_or_path
        if place is None and os.path.isabs(where) and not Path(where).exists():  # noqa: PTH117
            message = f"`{where}`: there is no such directory"
            raise advise(NotFoundError, message, "name a directory or a model of the Hub")
        if place is None and _settings.is_url(where):
            place = where
        if place is None or (isinstance(place, str) and Path(place).is_dir()):
            folder = source.model_or_path if place is None else place
            _weights.refuse_gguf(folder, "SGLang")
            files, use_safetensors = self._files(source, folder, keywords.get("resolved_source"))
            if not use_safetensors:
                self._settings.refuse_others(f"`{folder}`: files other than safetensors", "SGLang")
                logger.warning("%s has no safetensors: SGLang's own loader reads it instead of tload", folder)
                return super()._get_weights_iterator(source, **keywords)  # type: ignore[no-any-return]
            files = _weights.without_copies(files)
            if files:
                _weights.tell_others(str(Path(files[0]).parent), files, logger)
            weights = self._stream(sorted(files, key=_weights.natural), folder)
        else:
            if source.allow_patterns_overrides is not None:
                message = "this model chooses files by its own patterns, which URLs and lists do not support"
                raise advise(InvalidRequestError, message, "load it from a directory")
            weights = self._stream(place, show(place))
        self._note(source, weights, show(folder if place is None else place))
        draft = self.load_config.draft_model_idx
        if draft is not None:
            return self._filter_mtp_weights(weights, source.prefix, draft)  # type: ignore[no-any-return]
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        found = ((source.prefix + name, tensor) for name, tensor in weights)
        if source.model_config is not None and not source.prefix:
            self._opened = found, weights
        return found

    def _note(self, source: DefaultModelLoader.Source, weights: _weights.Weights, shown: str) -> None:
        """Remember what is loaded, and check that it can replace what the model has."""
        found = {source.prefix + name: (info.dtype, info.shape) for name, info in weights.infos.items()}
        if source.model_config is not None:
            served = self._served.get(source.model_config)
            if served is not None and self._settings.missing_weights == "error":
                reloading.check(served.loaded, found, shown)
            self._config, self._shown, self._entries = source.model_config, shown, {}
        self._entries.update(found)
        self._tell_watch()

    def _files(self, source: DefaultModelLoader.Source, folder: str, resolved: Any) -> tuple[Sequence[str], bool]:
        if resolved is not None and folder == source.model_or_path:
            return list(resolved.weight_files), resolved.use_safetensors
        folder, files, use_safetensors = self._prepare_weights(
            folder, source.revision, source.fall_back_to_pt, source.allow_patterns_overrides
        )
        if use_safetensors and source.model_config is not None:
            files = weight_utils.maybe_add_mtp_safetensors(files, folder, INDEX, source.model_config.hf_config)
        return files, use_safetensors

    def _stream(self, source: str | Sequence[str], shown: str) -> _weights.Weights:
        # Ranks on this machine, which share its page cache: at most one per GPU.
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        ranks = min(ranks, torch.cuda.device_count() or ranks)
        return _weights.stream(
            source,
            self._settings,
            shown=shown,
            open_bar=_bar,
            logger=logger,
            ranks=ranks,
            process_group=self._process_group(),
            on_cpu=self._on_cpu,
        )

    def _process_group(self) -> ProcessGroup | None:
        """Return the ranks that load the same weights at the same time, or `None` if there are none.

        SGLang says which: all when it starts, and those of one pipeline stage for draft models and
        updates of weights.
        """
        if not torch.distributed.is_initialized():
            return None
        # Versions without the field do not say it.
        ranks = getattr(self.load_config, "load_group", None)
        if ranks is getattr(load_configs, "_DEFAULT_LOAD_GROUP", ...):
            ranks = get_parallel().world_group
        group: ProcessGroup | None = None if ranks is None else ranks.cpu_group
        return group

    def _place(self, source: DefaultModelLoader.Source) -> str | tuple[str, ...] | None:
        """Return the user's location of these weights, or `None` if SGLang has to find them."""
        config = source.model_config
        if self._settings.source is None or config is None:
            return None  # weights beside the model's own have their own location
        if config.is_draft_model and config.model_path != get_model().model_path:
            return None  # as does a draft model, unless it is in the same files
        return self._settings.source


def _bar(total: int) -> Any:
    distributed = torch.distributed.is_initialized()
    return weight_utils.tqdm(
        total=total,
        desc="Loading safetensors using tload",
        disable=distributed and torch.distributed.get_rank() != 0,
        bar_format=weight_utils.BAR_FORMAT,
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        mininterval=1.0,
    )
