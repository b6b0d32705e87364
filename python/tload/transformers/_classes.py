"""Choice of the transformers class that loads a model."""

from __future__ import annotations

from typing import Any

from tload._errors import InvalidRequestError, UnsupportedError, advise

HUB = ("cache_dir", "force_download", "local_files_only", "revision", "token")
"""Arguments of transformers that control how files are found on the Hub."""


def resolve_class(cls: Any, config: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return the class that an Auto class would choose, with the configuration for it.

    An Auto class requires a model's name, which a model class does not accept together with
    weights.

    Args:
        cls: An Auto class or a model class.
        config: A configuration, or its location.
        kwargs: Keyword arguments, some of which may be for the configuration.

    Returns:
        Class, configuration (unchanged if `cls` is a model class), and the remaining arguments.

    Raises:
        InvalidRequestError: `cls` has no model for this configuration.
        UnsupportedError: The model's code is not part of transformers.
        TypeError: `cls` is neither an Auto class nor a model class.
    """
    from transformers import PreTrainedConfig, PreTrainedModel

    if isinstance(cls, type) and issubclass(cls, PreTrainedModel):
        return cls, config, kwargs
    mapping = getattr(cls, "_model_mapping", None)
    if mapping is None:
        found = cls.__qualname__ if isinstance(cls, type) else type(cls).__qualname__
        message = f"cls: wanted a model class of transformers, found {found}"
        raise TypeError(message)
    # Reading the configuration consumes it.
    is_trusted = bool(kwargs.get("trust_remote_code"))
    if not isinstance(config, PreTrainedConfig):
        config, kwargs = _read_config(config, kwargs)
    name = cls.__name__
    is_foreign = name in getattr(config, "auto_map", {}) and is_trusted
    if is_foreign or type(config) not in mapping:
        if name in getattr(config, "auto_map", {}):
            message = f"{name}: the code of {config.auto_map[name]} comes with the checkpoint"
            hint = "get the class by transformers.dynamic_module_utils.get_class_from_dynamic_module, and pass that"
            raise advise(UnsupportedError, message, hint)
        message = f"{name} has no model for a {type(config).__name__}"
        raise advise(InvalidRequestError, message, "pass another Auto class, or the model's own")
    # If several models are registered for one configuration, the configuration names one of them.
    from transformers.models.auto.auto_factory import _get_model_class

    model_class = _get_model_class(config, mapping)
    text_class = config.sub_configs.get("text_config")
    if text_class is not None and getattr(model_class, "config_class", None) == text_class:
        # For a model of text and images, only the part for text.
        quantization = getattr(config, "quantization_config", None)
        config = config.get_text_config()
        if quantization is not None:
            config.quantization_config = quantization
    return model_class, config, kwargs


def _read_config(source: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the configuration, updated by the arguments that are for it, and the others."""
    from transformers import AutoConfig

    # Arguments that are for the model and mean something else to the configuration, and arguments
    # for both.
    own = {name: kwargs[name] for name in ("dtype", "torch_dtype", "quantization_config") if name in kwargs}
    of_hub = {name: kwargs[name] for name in HUB if name in kwargs}
    config, left = AutoConfig.from_pretrained(
        source, return_unused_kwargs=True, **{name: value for name, value in kwargs.items() if name not in own}
    )
    return config, {**left, **own, **of_hub}
