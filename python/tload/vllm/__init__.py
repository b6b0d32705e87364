"""tload as a plugin of vLLM: `--load-format tload`.

Installing tload is enough; vLLM finds the plugin by itself (entry point group `vllm.general_plugins`):

```console
$ vllm serve MODEL --load-format tload
$ vllm serve MODEL --load-format tload --model-loader-extra-config '{"source": "s3://bucket/model"}'
$ TLOAD_REPLACE_RUNAI=1 vllm serve s3://bucket/model
```

MODEL is a folder or the name of a model of a hub, as ever; the files to read are chosen as `--load-format auto` chooses
them, and what is not safetensors is left to vLLM's own loader, or refused if `verify` is strict. vLLM itself refuses a
URL as the model with any format but those of Run:ai Model Streamer: give it as `source`, with configuration and
tokenizer from MODEL, or let tload take that loader's place.

Keys of `--model-loader-extra-config`, all optional. An unknown one, or a value that cannot work, is an error.

- `source`: Where the weights are if not where MODEL is: a folder, a file, an index, a list of files, or URLs of these,
  as for `tload.open`. Draft models of speculative decoding have places of their own, unless their weights are in the
  same model.
- `store`: How object stores are reached, as `store=` of `tload.open`. vLLM logs its arguments: secrets are better kept
  in the environment.
- `device`: `"cpu"` (the default), and vLLM copies from there; or `"cuda"`, the GPU of each process.
- `engine`, `cache`, `order`, `depth`, `in_flight_bytes`, `extent_bytes`, `lanes`, `memory_limit`,
  `device_memory_limit`, `retries`, `hedge`, `timeout`, `verify`: See the fields of `tload.Options`. `order` is `"file"`
  by default, as with vLLM's own loader.
- `enable_weights_track`: As for vLLM's own loader: whether weights that were not loaded are an error.

With several processes on a machine (tensor, pipeline or data parallel) each reads every tensor, as with vLLM's own
loader, but for experts of others with `--enable-ep-weight-filter`. `cache` is then `"buffered"` by default: the first
to come reads from the disk, the others from the page cache.

With `TLOAD_REPLACE_RUNAI=1` the plugin also takes the place of `runai_streamer`, whose package need not be installed.
Its keys are understood: `memory_limit` as above, but that -1 and 0 mean the default; `concurrency` and `distributed`
are checked and then ignored.
"""

from __future__ import annotations

from tload.vllm._settings import replaces_runai

__all__ = ["register"]

_registered = False


def register() -> None:
    """Register tload with vLLM, which calls this in each of its processes, some of them more than once.

    Raises:
        InvalidRequestError: `TLOAD_REPLACE_RUNAI` is neither 1 nor 0.
        ImportError: There is no vLLM, or one that this does not fit.
    """
    global _registered  # noqa: PLW0603  # vLLM warns of what is registered twice
    if _registered:
        return
    replaces = replaces_runai()
    from vllm.model_executor.model_loader import register_model_loader

    from tload.vllm._loader import TloadModelLoader

    register_model_loader("tload")(TloadModelLoader)
    if replaces:
        from tload.vllm import _runai

        register_model_loader("runai_streamer")(TloadModelLoader)
        _runai.provide()
    _registered = True
