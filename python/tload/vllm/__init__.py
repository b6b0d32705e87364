"""Plugin for vLLM: `--load-format tload`.

Only tload has to be installed; vLLM finds the plugin by itself (entry point group
`vllm.general_plugins`):

```console
$ vllm serve MODEL --load-format tload
$ vllm serve MODEL --load-format tload --model-loader-extra-config '{"source": "s3://bucket/model"}'
$ TLOAD_REPLACE_RUNAI=1 vllm serve s3://bucket/model
```

MODEL is a directory or the name of a Hub model, as usual. Files are chosen as `--load-format auto`
chooses them; files other than safetensors are left to vLLM's own loader, or refused if `verify` is
strict. vLLM itself refuses a URL as the model with any format but those of Run:ai Model Streamer:
pass it as `source`, with configuration and tokenizer from MODEL, or let tload replace that loader.

Keys of `--model-loader-extra-config`, all optional. An unknown key, or an invalid value, is an
error.

- `source`: Location of the weights if it is not MODEL: a directory, a file, an index, a list of
  files, or URLs of these, as for `tload.open`. Draft models of speculative decoding have locations
  of their own, unless their weights are in the same model.
- `store`: Options of object stores, as `store=` of `tload.open`. vLLM logs its arguments: secrets
  are better kept in the environment.
- `cache_dir`, `cache_limit`, `cache_check`, `mirrors`, `peers`, `hf_cache`: Keys of `store`,
  without it.
- `device`: `"cpu"` (the default), from which vLLM copies; or `"cuda"`, the GPU of each process.
- The fields of `tload.Options`, except `writable`. `order` is `"file"` by default, as with vLLM's
  own loader. On a CPU, files in the page cache are mapped (`cache` `"map"`) unless `cache`, `engine`
  or `verify` is set.
- `missing_weights`: What happens if a parameter of the model did not get all of its weights:
  `"error"` (the default) names it and the tensors that are missing, `"warn"` logs that, and `"off"`
  does not look.
- `plan`: `"on"`: the first start records which bytes go where, as a load plan in the cache of tload,
  and later ones fill the parameters by it, without vLLM's loader. Starts that no plan fits go
  through the loader. `"off"`: all do. `"auto"` (the default): `"on"` for models in host memory if
  `cache_dir` is given.
- `sharded_state`: `true` if the weights are a sharded state, as `save_sharded_state` writes it: each
  rank reads its own files into its parameters.
- `pattern`: Pattern of the names of these files, with the fields `{rank}` or `{tp_rank}`,
  `{pp_rank}` and `{part}`. Default: vLLM's. No two ranks may share a file.
- `enable_weights_track`: As for vLLM's own loader: raise an error for weights that were not loaded.
  `false` makes `missing_weights` `"warn"` by default.

For a reload (`reload_weights`), weights are opened and compared with those of the model before
vLLM gives these up: errors until then leave the model as it was. Its `weights_path` may be a URL.

With several processes (tensor, pipeline or data parallel), every process gets every tensor, as with
vLLM's own loader, except experts of other ranks with `--enable-ep-weight-filter`. One process of
each node reads for all of them: see `tload.Group`. `memory_limit` is then for the node. If some
processes do not load at the same time, each of the others reads for itself after `join_timeout`,
and a warning says so. With `verify`, the process that reads verifies for all of them. `"share":
"none"` makes each read for itself; files then come from the page cache: `cache` is `"buffered"` by
default.

With `TLOAD_REPLACE_RUNAI=1` the plugin also replaces `runai_streamer`, whose package need not be
installed. Its keys are accepted: `memory_limit` as above, except that -1 and 0 mean the default;
`distributed` as `"share": "node"` or `"none"`; `concurrency` is checked and then ignored.

With `TLOAD_LORA_SOURCE=s3://bucket/adapters` and `TLOAD_LORA_DIR` (a directory), a request for the
model NAME that vLLM does not know loads the LoRA adapter at `s3://bucket/adapters/NAME`, if there is
one. vLLM asks for that with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`. `TLOAD_LORA_LIMIT` is the maximum
size of the directory, such as `50GiB`.
"""

from __future__ import annotations

from tload.vllm._lora import adapters
from tload.vllm._settings import replaces_runai

__all__ = ["register"]

_registered = False


def register() -> None:
    """Register tload with vLLM, which calls this function in each process, possibly repeatedly.

    Raises:
        InvalidRequestError: `TLOAD_REPLACE_RUNAI` is neither 1 nor 0, `TLOAD_LORA_SOURCE` is set
            without `TLOAD_LORA_DIR`, or `TLOAD_LORA_LIMIT` is no size.
        ImportError: vLLM is not installed, or its version is not supported.
    """
    global _registered  # noqa: PLW0603  # vLLM warns of what is registered twice
    if _registered:
        return
    replaces, found = replaces_runai(), adapters()
    from vllm.model_executor.model_loader import register_model_loader

    from tload.vllm._loader import TloadModelLoader

    register_model_loader("tload")(TloadModelLoader)
    if replaces:
        from tload.vllm import _runai

        register_model_loader("runai_streamer")(TloadModelLoader)
        _runai.provide()
    if found is not None:
        from tload.vllm import _lora_resolver

        _lora_resolver.provide(found)
    _registered = True
