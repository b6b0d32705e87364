"""Implementation of `from_pretrained`: models of transformers with weights from tload."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from tload._checkpoint.checkpoint import Checkpoint, opened_with
from tload._checkpoint.opening import open_for
from tload._errors import InvalidRequestError, UnsupportedError, advise
from tload._load import read_one
from tload._load.load import require_files
from tload._options.keywords import OptionKeywords
from tload._options.load_options import Options, is_chosen, is_strict, resolve
from tload._patch import SharedChange, patch
from tload._ranks.group import Group, raw_group
from tload._sources.locations import SCHEMES
from tload._sources.opened import refuse_store, show
from tload._sources.origin import Opening
from tload.safetensors._map import may_be_mapped
from tload.transformers import _configuration
from tload.transformers._classes import HUB, resolve_class
from tload.transformers._feed import Feed
from tload.transformers._files import found_by_transformers
from tload.transformers._lazy import in_order_of_use
from tload.transformers._placement import placement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tload.typing import Source, Store

ADAPTER = "adapter_config.json"
"""File that marks a directory with an adapter."""

NAMES_SHOWN = 10
"""Maximum number of tensors that an error names."""

HUB_URL = re.compile(r"(?i:hf)://(?:models/)?[^/@]+/[^/@]+(?:@(?P<revision>[^/]+))?(?:/.*)?")
"""URL of a model of the Hub, or of something in it."""

HUB_LOCATION = re.compile(r"hf://(?P<id>[^/@]+/[^/@]+)@(?P<commit>[^/]+)/?")
"""URL of an open model of the Hub, including the files beside its weights."""

OTHER_WEIGHTS = {
    "state_dict": "pass the model class's own from_pretrained the tensors that you have",
    "gguf_file": "tload reads safetensors; use the model class's own from_pretrained",
    "variant": "pass the variant's file or index as source, and its directory as config",
    "subfolder": "pass the subfolder as source",
}
"""Arguments of transformers for the location of weights, which `source` replaces."""

OF_DOWNLOADS = {
    "local_files_only": 'set HF_HUB_OFFLINE=1, or pass store={"cache_check": "offline"} with its cache_dir',
    "force_download": "leave it out, or pass a directory that was downloaded anew",
}
"""Arguments of transformers for files of the Hub, which would reach only the configuration."""


def from_pretrained(
    cls: Any,
    source: Source,
    *model_args: Any,
    config: Any = None,
    dtype: str | torch.dtype | dict[str, Any] | None = None,
    device_map: str | int | torch.device | dict[str, Any] | None = None,
    store: Store | None = None,
    follow_symlinks: bool | None = None,
    options: Options | None = None,
    group: Group | None = None,
    **kwargs: Any,
) -> Any:
    """Load a model as `cls.from_pretrained` does, with weights streamed by tload.

    The weights are read ahead in the order in which transformers requests them, and become the
    model's parameters without a copy unless dtype, device or layout change. With a device map of
    GPUs, they are read directly into the memory of these. transformers converts keys, merges
    experts, quantizes, ties and initializes weights, and reports missing and unexpected keys. Its
    progress bar shows the progress of the load.

    If the load fails or is interrupted, an exception is raised and there is no model.

    Args:
        cls: A model class of transformers: an Auto class (`AutoModelForCausalLM`), or the model's
            own (`LlamaForCausalLM`).
        source: A directory, a safetensors file, an index file, or a list of files, as paths or
            URLs; or an open `Checkpoint`. In a directory, `model.safetensors` comes before an
            index, as in transformers, wherever the directory is. `config.json` and `generation_config.json` beside the
            weights are read too, except for a list of files.
        *model_args: Passed to the model class.
        config: The model's configuration: an object, or a directory or Hub ID that transformers
            reads it from. Default: that of the directory that is `source` or contains it. From a
            URL, the two files are fetched with `store`, within the `timeout` of `options` for each,
            into a temporary directory; but transformers itself finds those of a Hub model
            (`hf://org/name`). They are of the same commit as the weights. Code that comes with a
            checkpoint is never fetched from a URL. There is no default for a list of files.
        dtype: As in transformers. Default: `"auto"`, the dtype in `config.json`, or else of the
            weights.
        device_map: As in transformers: a device, a mapping of modules to devices, `"auto"` and so
            on; needs the package accelerate. Default: the CPU.
        store: Options of object stores: see `tload.open`.
        follow_symlinks: Allow symbolic links that lead out of the source's directory: see
            `tload.open`.
        options: Limits and preferences of reading. `memory_limit` and `device_memory_limit` apply
            to each of two concurrent streams; in addition, up to 1 GiB of tensors may wait to be
            requested. `dtype` is refused: it is an argument of its own. Default: those of
            `tload.stream`; but in CPU memory, parameters are private views of local files
            (`cache="map"`), as with transformers' own loader.
        group: Load together with the other ranks of a `Group`, which call this function with the
            same model: a node reads the weights once, also with a tensor parallel plan or FSDP
            (`distributed_config`). Parameters are copies that no ranks share. Each 512 MiB of
            weights are a load, which the ranks begin within `join_timeout`. If this function fails,
            this rank leaves the group. Default: every rank reads for itself; with
            `distributed_config`, only its parts.
        **kwargs: As in transformers (`attn_implementation`, `quantization_config`,
            `output_loading_info`, `trust_remote_code` for the configuration, …), except
            `state_dict`, `gguf_file`, `variant` and `subfolder`. With `use_safetensors=False`,
            transformers reads files of PyTorch from a local directory itself, without `store`,
            `follow_symlinks` and `group`. `token` and `cache_dir` are for the configuration, if
            transformers finds it on the Hub; the weights are read with `store`. With a URL,
            `local_files_only` and `force_download` are refused, and so is a `revision` that is not
            the one of the URL (`hf://org/name@v1`). Weights that
            `device_map` leaves on "disk" are read from local files on use; from a URL, they are
            written to `offload_folder`.

    Returns:
        The model, in evaluation mode; with `output_loading_info=True`, a pair of the model and
        transformers' loading info.

    Raises:
        Error: Any failure of reading: see `tload.stream`.
        InvalidRequestError: `config` is missing, and there is none beside `source`; an argument gives
            another location of weights, or would only reach the configuration; `options` has a
            `dtype`; `store` is passed with an open checkpoint; or `verify` is `"require"`, and
            transformers reads files of this model itself.
        UnsupportedError: transformers is missing or older than version 5; the model's code is not
            part of it; the model has an adapter (with peft installed); DeepSpeed's ZeRO-3 is on; or
            weights were left without memory.
        TypeError: `cls` is not a class, such as a source that is passed first.
        Exception: Any exception of transformers, for example for shapes that do not fit.

    Examples:
        >>> from transformers import AutoModelForCausalLM
        >>> model = from_pretrained(AutoModelForCausalLM, "s3://bucket/model")
    """
    with _leaving_on_failure(group), contextlib.ExitStack() as stack:
        _check_order(cls, source)
        _check_transformers()
        if isinstance(source, Checkpoint):
            refuse_store(source, store)
        location = source.location if isinstance(source, Checkpoint) else source
        _check_integrations(location)
        _check_keywords(kwargs)
        resolved = resolve(options, OptionKeywords())
        _check_dtype(resolved)
        together = Opening.of(raw_group(group), resolved)
        folder = _folder(location)
        # As in transformers, `model.safetensors` comes before an index.
        opening = partial(
            open_for, options=options, follow_symlinks=follow_symlinks, single_file_first=True, opening=together
        )
        checkpoint = source if isinstance(source, Checkpoint) else None
        if checkpoint is None and _is_on_hub(source):
            # A revision may move on, and the cache of the Hub's tools may be at another commit: the
            # files beside the weights are those of the commit of the weights.
            checkpoint = stack.enter_context(opening(source, store))
        # The location of an open checkpoint is shown without secrets.
        url, url_store = (source, store) if checkpoint is None else opened_with(checkpoint)
        _check_of_hub(location, url, kwargs)
        if config is None:
            config = _config_beside(
                cls, source, url, url_store, kwargs=kwargs, options=options, opening=opening, stack=stack
            )
        place: str | os.PathLike[str] | None = folder
        if folder is None and isinstance(config, (str, os.PathLike)):
            place = _folder(config) or config
        cls, config, kwargs = resolve_class(cls, config, {"dtype": dtype, "device_map": device_map, **kwargs})
        if kwargs.get("generation_config") is None and place is not None and cls.can_generate():
            kwargs["generation_config"] = _generation_config(place, kwargs)
        kwargs["config"] = config
        if kwargs.get("use_safetensors") is False:
            _check_pickled(source, resolved, store=store or None, follow_symlinks=follow_symlinks, group=group)
            with patch():
                return cls.from_pretrained(str(_directory(source)), *model_args, **kwargs)
        _check_verified(cls, config, location, options)
        named = None
        if not isinstance(source, Checkpoint):
            named = _configuration.named_weights(config, url, kwargs, follow_symlinks=follow_symlinks)
        if checkpoint is None or named is not None:
            checkpoint = stack.enter_context(opening(named or source, url_store))
        loaded = _load(cls, checkpoint, _directory(location), model_args, kwargs, options=options, group=group)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        _check_memory(model, checkpoint)
    model.name_or_path = model.config.name_or_path = checkpoint.location if folder is None else str(folder)
    return loaded


def _config_beside(
    cls: Any,
    source: Source,
    url: Any,
    url_store: Store | None,
    *,
    kwargs: dict[str, Any],
    options: Options | None,
    opening: Callable[..., Checkpoint],
    stack: contextlib.ExitStack,
) -> Any:
    """Return the location of the configuration beside the weights.

    That of a URL is fetched into a directory that lasts as long as `stack`. For a model of the Hub,
    `kwargs` get the commit of the weights.

    Raises:
        InvalidRequestError: There is none, or transformers would read a local one instead.
        Error: It cannot be fetched, or the source does not exist.
    """
    if hub := HUB_LOCATION.fullmatch(str(url)):
        if Path(hub["id"]).is_dir():
            message = f"{show(source)}: transformers would read the configuration of the local directory {hub['id']!r}"
            hint = "load it from another working directory, or pass config="
            raise advise(InvalidRequestError, message, hint)
        kwargs["revision"] = hub["commit"]
        return hub["id"]
    location = source.location if isinstance(source, Checkpoint) else source
    folder = _folder(location)
    if folder is not None:
        return folder
    if _configuration.is_url(url):
        return stack.enter_context(_configuration.fetched(str(url), cls, kwargs, store=url_store, options=options))
    if isinstance(location, (str, os.PathLike)) and not isinstance(source, Checkpoint):
        # A path that does not exist has its own error, with what was meant.
        opening(location, url_store).close()
    hint = "pass config=: a configuration, or a local directory or Hub id that has one (the Hub is hf://org/name)"
    is_list = not isinstance(location, (str, os.PathLike))
    found = "is a list of files" if is_list else "is not a local file or directory"
    message = f"{show(source)}: {found}, so config= is needed"
    raise advise(InvalidRequestError, message, hint)


def _load(
    cls: Any,
    checkpoint: Checkpoint,
    folder: Path | None,
    model_args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    options: Options | None,
    group: Group | None,
) -> Any:
    require_files(checkpoint, options)
    is_whole_read = kwargs.pop("disable_mmap", None)

    def read(name: str, index: Any = ...) -> torch.Tensor:
        tensor: torch.Tensor = read_one.read(checkpoint, name, index, "torch", "cpu", options=options)
        return tensor

    def load() -> Any:
        return cls.from_pretrained(None if folder is None else str(folder), *model_args, **kwargs)

    is_divided = any(
        kwargs.get(name) is not None for name in ("distributed_config", "tp_plan", "tp_size", "device_mesh")
    )
    # Ranks that share a model read only their parts of tensors, as soon as these are known. Reading
    # ahead has no use.
    if is_divided and group is None:
        with found_by_transformers(checkpoint, read, read):
            return load()
    device, device_map = placement(kwargs.get("device_map"), checkpoint)
    is_alone = group is None and options is None and not is_whole_read
    is_mapped = is_alone and device == "cpu" and not device_map and _may_be_mapped(checkpoint)
    ahead = Options(cache="map") if is_mapped else _with_small_regions(options)
    names = in_order_of_use(checkpoint)
    feed = Feed(checkpoint, names, read, device=device, device_map=device_map, options=ahead, group=group)
    # Tensors of a group cannot be written to, and a part would keep the memory of a whole one.
    take = (feed.take, read) if group is None else (feed.take_copy, feed.take_part)
    try:
        with found_by_transformers(checkpoint, *take), _one_at_a_time():
            loaded = load()
            feed.finish()
            return loaded
    finally:
        feed.close()


def _with_small_regions(options: Options | None) -> Options:
    """Return the options for reading to a GPU, with regions of 1 MiB unless the caller set them.

    transformers casts, quantizes and merges tensors (experts, for one), and so replaces those that
    were loaded. The tensors of a region that stay as they are would retain the memory of the others.
    `save_pretrained` also clones tensors that share a storage.
    """
    if resolve(options, OptionKeywords()).region_bytes is not None:
        return options or Options()
    return dataclasses.replace(options or Options(), region_bytes="1 MiB")


@contextlib.contextmanager
def _leaving_on_failure(group: Group | None) -> Iterator[None]:
    """Leave the group if the block fails: the other ranks must not wait for this one."""
    try:
        yield
    except BaseException:
        if isinstance(group, Group):
            group.close()
        raise


def _check_pickled(source: Source, options: Options, **keywords: object) -> None:
    """Raise `InvalidRequestError` if transformers cannot load files of PyTorch as demanded."""
    folder = _directory(source)
    found = f"{show(source)}: use_safetensors=False asks for files of PyTorch"
    if folder is None:
        message = f"{found}, which tload does not read, and transformers reads only from a local directory"
        raise advise(InvalidRequestError, message, "leave use_safetensors out, or copy the directory (tload cp)")
    if is_strict(options):
        message = f"{found}, which cannot be verified, as verify= requires"
        raise advise(InvalidRequestError, message, "use safetensors files, or set verify to auto or off")
    if given := [name for name, value in keywords.items() if value is not None]:
        message = f"{found}, which transformers reads itself, without {given[0]}="
        raise advise(InvalidRequestError, message, f"leave {given[0]}= out, or use safetensors files")


def _may_be_mapped(checkpoint: Checkpoint) -> bool:
    """Return whether parameters may be views of the files, as in transformers' own loader.

    They may not if the environment or the configuration file sets the cache or the engine, for
    remote and sealed files, or if a file system has no mappings.
    """
    said = checkpoint.is_sealed or any(is_chosen(name) for name in ("cache", "engine"))
    return not said and may_be_mapped(shard.location for shard in checkpoint.shards)


def _check_keywords(kwargs: dict[str, Any]) -> None:
    """Raise an error for keywords that belong to `options` or name other weights; drop empty ones."""
    if own := sorted(OptionKeywords.__optional_keys__ & kwargs.keys()):
        message = f"from_pretrained() takes {own[0]}= in options="
        raise TypeError(f"{message}: write options=tload.Options({own[0]}={kwargs[own[0]]!r})")
    for name, hint in OTHER_WEIGHTS.items():
        if kwargs.pop(name, None) not in (None, ""):  # it may be a dict
            raise advise(InvalidRequestError, f"{name}= and source both say where the weights are", hint)


def _check_dtype(options: Options) -> None:
    """Raise `InvalidRequestError` if options convert dtypes, which transformers chooses."""
    if options.dtype is not None:
        message = f"dtype={options.dtype} in options= has no meaning here: transformers chooses the model's dtype"
        raise advise(InvalidRequestError, message, "pass dtype= of from_pretrained")


def _check_of_hub(location: Source, url: Any, kwargs: dict[str, Any]) -> None:
    """Raise `InvalidRequestError` for arguments that would reach only the configuration of a URL.

    Args:
        location: The location as the caller wrote it.
        url: Location of what was opened: models of the Hub are of a commit.
        kwargs: Arguments of transformers.
    """
    places = [(location, url)] if isinstance(url, (str, os.PathLike)) else [(each, each) for each in url]
    for place in places:
        if not _configuration.is_url(place[1]):
            continue
        for name, hint in OF_DOWNLOADS.items():
            if kwargs.get(name):
                message = f"{show(place[0])}: {name}= has no effect on weights that tload reads from a URL"
                raise advise(InvalidRequestError, message, hint)
        found = [match for each in place if (match := HUB_URL.fullmatch(str(each)))]
        revision = kwargs.get("revision")
        if found and revision not in (None, *(unquote(match["revision"] or "main") for match in found)):
            message = f"{show(place[0])}: revision={revision!r} is not that of the URL, from which weights are read"
            raise advise(InvalidRequestError, message, f"pass hf://org/name@{quote(str(revision), safe='')}")


def _check_order(cls: object, source: object) -> None:
    """Raise `TypeError` if the first argument is not a class, but perhaps the second one is."""
    if isinstance(cls, type):
        return
    message = f"cls: wanted a model class of transformers, found {type(cls).__qualname__}"
    if isinstance(source, type):
        message += f"; write from_pretrained({source.__qualname__}, {cls!r})"
    raise TypeError(message)


def _check_transformers() -> None:
    try:
        import transformers
    except ImportError as error:
        message = f"this needs the package transformers, and it cannot be imported ({error})"
        raise advise(UnsupportedError, message, "install transformers") from error
    if int(transformers.__version__.partition(".")[0]) < 5:  # noqa: PLR2004  # loads lazily since
        message = f"this needs transformers 5 or newer, and {transformers.__version__} is installed"
        raise advise(UnsupportedError, message, "upgrade transformers, or use tload.patch()")


def _check_verified(cls: Any, config: Any, location: Source, options: Options | None) -> None:
    """Raise `InvalidRequestError` if transformers would read weights itself that must be verified."""
    if not is_strict(resolve(options, OptionKeywords())):
        return
    from transformers import PreTrainedConfig, modeling_utils

    find = getattr(modeling_utils, "get_distributed_checkpoint_dir", None)
    folder = _directory(location)
    of_class = type(config) if isinstance(config, PreTrainedConfig) else cls.config_class
    is_distributed = find is not None and folder is not None and find(str(folder), "", None, None) is not None
    if is_distributed or getattr(of_class, "extra_files", None):
        message = f"{show(location)}: transformers reads files of this model itself"
        message += ", which cannot be verified, as verify= requires"
        raise advise(InvalidRequestError, message, "set verify to auto or off")


def _check_integrations(location: object) -> None:
    """Raise `UnsupportedError` if transformers would not just load weights from the directory."""
    from transformers.integrations import is_deepspeed_zero3_enabled
    from transformers.utils import is_peft_available

    if is_deepspeed_zero3_enabled():
        message = "DeepSpeed's ZeRO-3 is on, which needs all weights in memory at once"
        raise advise(UnsupportedError, message, "use the model class's own from_pretrained")
    folder = _folder(location)
    if folder is not None and (folder / ADAPTER).is_file() and is_peft_available():
        message = f"{folder}: there is an adapter beside the weights, which transformers would load with peft"
        raise advise(UnsupportedError, message, "use the model class's own from_pretrained inside tload.patch()")


def _generation_config(place: str | os.PathLike[str], kwargs: dict[str, Any]) -> Any:
    """Return the generation config that the model's class would find at a location."""
    from transformers import GenerationConfig

    of_hub = {name: kwargs[name] for name in HUB if name in kwargs}
    try:
        return GenerationConfig.from_pretrained(place, **of_hub)
    except OSError:
        # Older models have it in their configuration, which drops it when it is read.
        return GenerationConfig.from_pretrained(
            place, config_file_name="config.json", _from_model_config=True, **of_hub
        )


def _folder(location: object) -> Path | None:
    """Return a local directory, or the directory of a local file, else `None`."""
    if not isinstance(location, (str, os.PathLike)) or str(location).partition(":/")[0].lower() in SCHEMES:
        return None
    path = Path(location)
    if path.is_dir():
        return path
    return path.parent if path.is_file() else None


def _directory(location: object) -> Path | None:
    """Return a local directory, else `None`."""
    folder = _folder(location)
    return folder if folder is not None and Path(str(location)) == folder else None


def _is_on_hub(source: object) -> bool:
    return isinstance(source, str) and source.partition("://")[0].lower() == "hf"


def _check_memory(model: Any, checkpoint: Checkpoint) -> None:
    """Raise `UnsupportedError` if a tensor has no memory, unless accelerate loads it on use."""
    left = [
        f"{path}.{name}".removeprefix(".")
        for path, module in model.named_modules()
        if not hasattr(module, "_hf_hook")
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        if tensor.is_meta
    ]
    if not left:
        return
    shown = ", ".join(map(repr, left[:NAMES_SHOWN]))
    if len(left) > NAMES_SHOWN:
        shown += f" and {len(left) - NAMES_SHOWN} more"
    hint = "load it with the model class's own from_pretrained, and report this to the authors of tload"
    raise advise(UnsupportedError, f"{checkpoint.location}: left on the meta device: {shown}", hint, tensor=left[0])


ASYNC = "HF_DEACTIVATE_ASYNC_LOAD"
_async_before: list[str | None] = []


def _deactivate_async() -> None:
    if not _async_before:
        _async_before.append(os.environ.get(ASYNC))
    os.environ[ASYNC] = "1"


def _restore_async() -> None:
    before = _async_before.pop()
    if before is None:
        os.environ.pop(ASYNC, None)
    else:
        os.environ[ASYNC] = before


_one_at_a_time = SharedChange(_deactivate_async, _restore_async)
"""Makes transformers request each tensor when it needs it, not all at once in threads.

The stream already reads ahead, and tensors that those threads have read but not merged yet would be
unbounded.
"""
