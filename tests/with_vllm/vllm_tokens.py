"""Runs vLLM on the CPU with its own loader and with tload, and compares the generated tokens: `make
test-engines`.

It makes its own models: a tiny Llama and a tiny Mixtral of random numbers, in several shards, with
a tokenizer. Each run is a process of its own, because loaders, plugins and environments are per
process. Nothing is downloaded.

    python tests/with_vllm/vllm_tokens.py [--results FILE] [--only WORD]
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import servers

PROMPTS = ["the weights of the model", "a disk is", "one two three four"]
TOKENS = 24
PATIENCE = 900.0
"""Seconds for a run: far more than a busy machine needs."""
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MARK = "RESULT "
RECORDED, BY_PLAN = "recorded a load plan", "by a load plan"
EXPERT = "model.layers.1.block_sparse_moe.experts.2.w3.weight"


@dataclass(frozen=True)
class Case:
    """One run of vLLM."""

    title: str
    arguments: dict[str, Any]
    reference: str | None = None
    """Title of the run with the same expected tokens. `None`: this is such a run."""
    environment: dict[str, str] = field(default_factory=dict)
    fails: str | None = None
    """Regular expression for the error, if the run must fail."""
    ranks: int = 1
    """Number of processes, of which one reads for all."""
    plan: str | None = None
    """Words of the log line of each process that loads by a plan or records one. `None`: none does."""
    reloads: bool = False
    """The weights are loaded once more, and the same prompts completed again."""


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    said: list[Any] | None
    log: str

    def line(self, pattern: str) -> str:
        found = re.findall(pattern, self.log, re.MULTILINE)
        return found[-1] if found else ""


def run_case(arguments: dict[str, Any], *, reloads: bool) -> None:
    """Load a model and generate tokens, of the reloaded model if it is."""
    from vllm import LLM, SamplingParams

    llm = LLM(enforce_eager=True, dtype="bfloat16", max_model_len=128, max_num_seqs=4, seed=0, **arguments)
    settings = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=0)
    if reloads:
        llm.collective_rpc("reload_weights")
    said = []
    for output in llm.generate(PROMPTS, settings):
        completion = output.outputs[0]
        said.append([list(completion.token_ids), completion.cumulative_logprob])
    print(MARK + json.dumps(said), flush=True)  # noqa: T201


def start(case: Case, log: Path) -> Outcome:
    """Run a case in a child process that has already imported vLLM: the import takes longer than
    everything else."""
    child = multiprocessing.get_context("fork").Process(target=_child, args=(case, log))
    child.start()
    child.join(PATIENCE)
    if child.is_alive():
        child.kill()
        child.join()
    text = log.read_text(errors="replace")
    marked = [line for line in text.splitlines() if line.startswith(MARK)]
    return Outcome(json.loads(marked[-1].removeprefix(MARK)) if marked else None, text)


def _child(case: Case, log: Path) -> None:
    os.environ.update(case.environment)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    run_case(case.arguments, reloads=case.reloads)


def make_models(folder: Path) -> None:
    """Write `llama` and `mixtral`, each in several shards, and folders with variations of
    `llama`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        PreTrainedTokenizerFast,
    )

    words = Tokenizer(models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"])
    words.train_from_iterator([__doc__ or "", Path(__file__).read_text(), *PROMPTS], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    shape = {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,  # wide enough that rounding does not decide the next token
    }
    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=False))
    mixtral = MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=4, num_experts_per_tok=2))
    for name, model in {"llama": llama, "mixtral": mixtral}.items():
        model.to(torch.bfloat16).save_pretrained(folder / name, max_shard_size="700KB")
        tokenizer.save_pretrained(folder / name)
        assert len(list((folder / name).glob("*.safetensors"))) > 3
    # The same without weights, whose location is given separately.
    shutil.copytree(folder / "llama", folder / "bare", ignore=shutil.ignore_patterns("*.safetensors*"))
    truncated = folder / "truncated"
    shutil.copytree(folder / "llama", truncated)
    shard = sorted(truncated.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-2])
    from safetensors.torch import load_file, save_file

    # One of four experts of one layer lacks one of its three tensors.
    incomplete = folder / "incomplete"
    shutil.copytree(folder / "mixtral", incomplete)
    (incomplete / "model.safetensors.index.json").unlink()
    [shard] = [path for path in incomplete.glob("*.safetensors") if EXPERT in load_file(path)]
    save_file({name: tensor for name, tensor in load_file(shard).items() if name != EXPERT}, shard)
    quantised = folder / "quantised"
    shutil.copytree(folder / "llama", quantised)
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "nonesuch"}}))
    snapshot = folder / "hub" / "models--tests--llama" / "snapshots" / COMMIT
    shutil.copytree(folder / "llama", snapshot)
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text(COMMIT)


def ours(model: str, **extra: Any) -> dict[str, Any]:
    """Return arguments for a load by tload, with all tensors through vLLM's loader."""
    return {"model": model, "load_format": "tload", "model_loader_extra_config": {"plan": "off", **extra}}


def cases(folder: Path, s3: servers.S3 | None) -> list[Case]:
    llama, mixtral, bare = (str(folder / name) for name in ("llama", "mixtral", "bare"))
    listed = [
        Case("Llama, folder, `auto`", {"model": llama}),
        Case("Llama, folder, `tload`", ours(llama), "Llama, folder, `auto`"),
        Case(
            "Llama, from the cache of Hugging Face, `tload`",
            ours("tests/llama"),
            "Llama, folder, `auto`",
        ),
        Case(
            "Llama, `source` is another folder, views of the page cache",
            ours(bare, source=llama, cache="map"),
            "Llama, folder, `auto`",
        ),
        Case("Mixtral, folder, `auto`", {"model": mixtral}),
        Case("Mixtral, folder, `tload`", ours(mixtral), "Mixtral, folder, `auto`"),
    ]
    for name, folder_ in (("Llama", llama), ("Mixtral", mixtral)):
        arguments, reference = ours(folder_, plan="on"), f"{name}, folder, `auto`"
        listed += [
            Case(f"{name}, first start with a load plan", arguments, reference, plan=RECORDED),
            Case(f"{name}, second start with a load plan", arguments, reference, plan=BY_PLAN),
        ]
    listed.append(
        Case(
            "Llama, third start with a load plan, reloaded",
            {"model": llama, "load_format": "tload"},
            "Llama, folder, `auto`",
            plan=BY_PLAN,
            reloads=True,
        )
    )
    if s3 is not None:
        url = s3.put_folder("models", "llama", folder / "llama")
        extra = {"source": url, "store": s3.store, "plan": "off"}
        environment = {
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_ACCESS_KEY_ID": s3.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
            "AWS_REGION": servers.REGION,
            "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
        }
        listed += [
            Case(
                "Llama, `source` is in a bucket, `tload`",
                {"model": bare, "load_format": "tload", "model_loader_extra_config": extra},
                "Llama, folder, `auto`",
            ),
            Case(
                "Llama, the model is in a bucket, `TLOAD_REPLACE_RUNAI=1`",
                {"model": url, "model_loader_extra_config": {"plan": "off"}},
                "Llama, folder, `auto`",
                environment | {"TLOAD_REPLACE_RUNAI": "1"},
            ),
            Case(
                "`source` is a bucket that is not there",
                {"model": bare, "load_format": "tload", "model_loader_extra_config": extra | {"source": "s3://none/m"}},
                fails=r"RuntimeError: (tload cannot load the model weights of `s3://none/m`: .*)$",
            ),
        ]
    two = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    unbound = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # otherwise it requires a NUMA node for each rank
    listed += [
        Case("Llama, 2 ranks, `auto`", {"model": llama, **two}, environment=unbound),
        Case(
            "Llama, 2 ranks, `tload`",
            ours(llama) | two,
            "Llama, 2 ranks, `auto`",
            unbound,
            ranks=2,
        ),
        Case(
            "Llama, 2 ranks, `tload`, `share` is `none`",
            ours(llama, share="none") | two,
            "Llama, 2 ranks, `auto`",
            unbound,
        ),
        Case("Mixtral, 2 ranks, `auto`", {"model": mixtral, **two}, environment=unbound),
        Case(
            "Mixtral, 2 ranks, views of shared memory, `tload`",
            ours(mixtral, private=False) | two,
            "Mixtral, 2 ranks, `auto`",
            unbound,
            ranks=2,
        ),
    ]
    for name, folder_ in (("Llama", llama), ("Mixtral", mixtral)):
        arguments, reference = ours(folder_, plan="on") | two, f"{name}, 2 ranks, `auto`"
        for start_, words in (("first", RECORDED), ("second", BY_PLAN)):
            title = f"{name}, 2 ranks, {start_} start with a load plan"
            listed.append(Case(title, arguments, reference, unbound, ranks=2, plan=words))
    if s3 is not None:
        listed += [
            Case(
                "Llama, 2 ranks, `source` is in a bucket, `tload`",
                {"model": bare, "load_format": "tload", "model_loader_extra_config": extra, **two},
                "Llama, 2 ranks, `auto`",
                unbound,
                ranks=2,
            ),
            Case(
                "Llama, 2 ranks, the model is in a bucket, `TLOAD_REPLACE_RUNAI=1`, `distributed`",
                {"model": url, "model_loader_extra_config": {"distributed": True, "plan": "off"}, **two},
                "Llama, 2 ranks, `auto`",
                environment | unbound | {"TLOAD_REPLACE_RUNAI": "1"},
                ranks=2,
            ),
        ]
    listed += [
        Case(
            "a quantisation that is none",
            {"model": str(folder / "quantised"), "load_format": "tload"},
            fails=r"(Unknown quantization method: nonesuch)",
        ),
        Case(
            "a key that is none",
            {"model": llama, "load_format": "tload", "model_loader_extra_config": {"memory_limt": 1}},
            fails=r"(model_loader_extra_config: 'memory_limt' is not a key of tload; did you mean 'memory_limit'\?)$",
        ),
        Case(
            "an expert without one of its tensors",
            ours(str(folder / "incomplete"), plan="on"),
            fails=rf"ValueError: (`.*` leaves 1 parameter of Mixtral.*; no tensor '{re.escape(EXPERT)}'\))$",
        ),
        Case(
            "an expert without one of its tensors, second start with a load plan",
            ours(str(folder / "incomplete"), plan="on"),
            fails=rf"ValueError: (`.*` leaves 1 parameter of Mixtral.*; no tensor '{re.escape(EXPERT)}'\))$",
        ),
        Case(
            "a shard that ends early",
            {"model": str(folder / "truncated"), "load_format": "tload"},
            fails=r"RuntimeError: (tload cannot load the model weights of .*)$",
        ),
    ]
    return listed


# End of a rank's log line, if another rank of its node read for it.
SHARED = " shared by the ranks of this node"


def judge(case: Case, outcome: Outcome, earlier: dict[str, Outcome]) -> tuple[bool, str]:
    if case.fails is not None:
        error = outcome.line(case.fails)
        return outcome.said is None and error != "", error or "no such error"
    if outcome.said is None:
        return False, "did not run"
    ours = outcome.line(r"tload read (\d+ tensors) of .*?(?= in )")
    how = outcome.line(r"tload read \d+ tensors of .* with (.*)$")
    if case.reference is None:
        distinct = len({token for tokens, _ in outcome.said for token in tokens})
        return not ours and distinct > 3, f"the reference: {len(PROMPTS) * TOKENS} tokens, {distinct} different ones"
    reference = earlier.get(case.reference)
    if not ours or reference is None:
        return False, "its reference did not run" if ours else "tload did not load it"
    if case.ranks == 1:
        return outcome.said == reference.said, f"{ours} with {how}"
    loads = [
        line.split(", ")
        for line in re.findall(r"tload read \d+ tensors of .* with [\w +]+: (.*)$", outcome.log, re.MULTILINE)
    ]
    shared = [load[-1].removesuffix(SHARED) for load in loads if load[-1].endswith(SHARED)]
    read = [part for load in loads for part in load if not part.endswith(SHARED)]
    readers = sum(len(load) > 1 for load in loads)
    told = f"{ours} on {len(loads)} ranks: {' + '.join(read)}, {' + '.join(shared)} received"
    is_once = len(loads) == len(shared) == case.ranks and readers == 1
    return outcome.said == reference.said and is_once, told


def judge_plan(case: Case, outcome: Outcome, earlier: dict[str, Outcome]) -> tuple[bool, str]:
    lines = re.findall(rf"tload loaded \d+ tensors of .* {case.plan}.*$", outcome.log, re.MULTILINE)
    known = earlier.get(case.reference or "")
    good = known is not None and outcome.said is not None and outcome.said == known.said
    good = good and len(lines) == case.ranks
    # Reloads are vLLM's own.
    good = good and ("tload read" in outcome.log) == case.reloads
    return good, f"{len(lines)} of {case.ranks} ranks: {case.plan}"


def report(rows: list[tuple[Case, bool, str]]) -> str:
    names = ("vllm", "vllm-cpu", "torch", "transformers", "safetensors", "tload")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    lines = [
        "# vLLM with tload and without",
        "",
        "Written by `make test-engines`. Each row is a run of vLLM on a CPU with a tiny model of random numbers. Same:",
        f"the same {TOKENS} token ids for each of {len(PROMPTS)} prompts, and the same sums of their log probabilities",
        "to the last bit.",
        "",
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {', '.join(versions)}, Python {sys.version.split()[0]}.",
        "",
        "| run | | |",
        "|:--|:--|:--|",
    ]
    for case, good, told in rows:
        word = "fails as it should" if case.fails else "ran" if case.reference is None else "same"
        shown = told.replace("|", "\\|")
        lines.append(f"| {case.title} | {word if good else 'WRONG'} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    # Read when the packages are imported.
    os.environ.update(ENVIRONMENT)
    rows: list[tuple[Case, bool, str]] = []
    outcomes: dict[str, Outcome] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["HF_HUB_CACHE"] = str(folder / "hub")
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        # Not in this process: children of a process that has computed in threads hang.
        maker = multiprocessing.get_context("spawn").Process(target=make_models, args=(folder,))
        maker.start()
        maker.join()
        import vllm.entrypoints.llm
        import vllm.v1.worker.cpu_worker  # noqa: F401

        program = servers.find("versitygw")
        s3 = None
        if program is None:
            print("SKIPPED: needs servers: versitygw is neither in .tools/bin nor on the PATH", flush=True)  # noqa: T201
        else:
            (folder / "s3").mkdir()
            s3 = stack.enter_context(servers.versitygw(program, folder / "s3"))
        listed = cases(folder, s3)
        chosen = {case.title for case in listed if arguments.only in case.title}
        chosen |= {case.reference for case in listed if case.title in chosen and case.reference}
        for case in listed:
            if case.title not in chosen:
                continue
            outcome = outcomes[case.title] = start(case, folder / "log")
            good, told = (judge if case.plan is None else judge_plan)(case, outcome, outcomes)
            told = told.replace(str(folder), "…")
            rows.append((case, good, told))
            print(f"{'ok   ' if good else 'WRONG'} {case.title}: {told}", flush=True)  # noqa: T201
            if not good:
                print(outcome.log, flush=True)  # noqa: T201
    if arguments.results is not None:
        arguments.results.write_text(report(rows))
    return 0 if all(good for _, good, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
