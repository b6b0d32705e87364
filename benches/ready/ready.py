"""Seconds from the start of an engine to its first token, with every loader that runs, as a waterfall.

    python benches/ready/ready.py --rounds 3 --out ready.json --svg ready.svg

Runs in an environment that has vLLM and tload. Makes its models, of random numbers. Each run is a process of its own;
rounds run all cases one after another, in rotating order. "Disk" is confirmed cold before each start, "page cache"
warm, and "S3" is a server on this machine, whose files stay warm. `--throttle` adds a store that sends so many bytes
per second in all, as it is and under `tload exec`. `--runai` is a folder with runai-model-streamer, if the
environment lacks it. `--plan` is the configuration that makes tload load by a plan.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import picture
from throttle import throttled

sys.path.append(str(Path(__file__).parents[2] / "tests"))
sys.path.append(str(Path(__file__).parents[1] / "gpu" / "loaders"))
import page_cache

import servers

HERE = Path(__file__).parent

PATIENCE = 900.0
"""Seconds for a start: far more than a busy machine needs."""

DISK, WARM, S3, SLOW = "disk", "page cache", "S3", "slow S3"

SHAPES = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2},
    "dense": {"hidden_size": 1536, "intermediate_size": 3584, "num_hidden_layers": 20},
}
"""Llamas: of some MB, and of 1 GiB."""

PHASES = (
    ("imports", "vllm imported"),
    ("configuration, other processes", "load_model begins"),
    ("skeleton", "load_weights begins"),
    ("load_weights", "load_weights ends"),
    ("processing of weights", "load_model ends"),
    ("KV cache, warm-up", "ready"),
    ("first token", "first token"),
)
"""Phases in order, each with the mark at its end."""


@dataclass(frozen=True)
class Case:
    model: str
    loader: str
    source: str
    layout: str = "one process"
    mode: str = "eager"
    ahead: bool = False

    @property
    def title(self) -> str:
        named = "under tload exec" if self.ahead else ""
        return ", ".join(filter(None, [self.loader, self.source, self.layout, self.mode, named]))


@dataclass(frozen=True)
class Place:
    """Folder and URLs of the models."""

    folder: Path
    urls: dict[str, str]
    variables: dict[str, dict[str, str]]
    """Environment by source."""


def make(folder: Path, name: str) -> None:
    """Write a Llama of random numbers in six files, and a folder with all but the weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPES[name],
        vocab_size=512,
        num_attention_heads=SHAPES[name]["hidden_size"] // 64,
        num_key_value_heads=SHAPES[name]["hidden_size"] // 128,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    model.save_pretrained(folder / name, max_shard_size=size // 6 + (1 << 16))
    shutil.copytree(folder / name, folder / f"{name}-bare", ignore=shutil.ignore_patterns("*.safetensors*"))


def arguments(case: Case, place: Place, plan: dict[str, Any] | None) -> dict[str, Any]:
    """Return the engine's arguments."""
    own = {
        "dtype": "bfloat16",
        "max_model_len": 128,
        "max_num_seqs": 4,
        "seed": 0,
        "skip_tokenizer_init": True,
        "enforce_eager": case.mode == "eager",
        "load_format": {"default": "auto", "Run:ai": "runai_streamer"}.get(case.loader, "tload"),
    }
    if case.source not in (S3, SLOW):
        model = str(place.folder / case.model)
        extra: dict[str, Any] = {}
    elif case.loader == "Run:ai":
        model, extra = place.urls[case.model], {}
    else:
        model, extra = str(place.folder / f"{case.model}-bare"), {"source": place.urls[case.model]}
    if case.loader == "tload, plan":
        extra |= plan or {}
    return own | {"model": model} | ({"model_loader_extra_config": extra} if extra else {})


def start(case: Case, place: Place, options: argparse.Namespace) -> dict[str, Any]:
    """Start the engine once."""
    files = sorted((place.folder / case.model).glob("*.safetensors"))
    state = page_cache.prepare(files, "cold" if case.source == DISK else "warm")
    marks, cache = place.folder / "marks", place.folder / "cache"
    marks.unlink(missing_ok=True)
    shutil.rmtree(cache, ignore_errors=True)
    paths = [str(HERE / "hooks"), os.environ.get("PYTHONPATH"), options.runai if case.loader == "Run:ai" else None]
    environment = {
        **os.environ,
        **place.variables.get(case.source, {}),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "READY_ARGUMENTS": json.dumps(arguments(case, place, options.plan)),
        "READY_MARKS": str(marks),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if case.layout == "one process" else "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(place.folder / "vllm-cache"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, str(HERE / "engine.py")]
    if case.source == SLOW:
        environment["TLOAD_CACHE_DIR"] = str(cache)
    if case.ahead:
        command = [*options.tload, "exec", "--prefetch", place.urls[case.model], "--", *command]
    began = time.time()
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE, cwd=place.folder
    )
    if "TOKEN" not in done.stdout:
        if log := os.environ.get("READY_LOG"):
            Path(log).write_text(done.stdout + done.stderr)
        words = [line for line in done.stderr.splitlines() if "Error" in line and "WARNING" not in line]
        return {"case": vars(case), "error": words[-1][-300:] if words else f"status {done.returncode}"}
    lines = [json.loads(line) for line in marks.read_text().splitlines()]
    ends = {line["name"]: line for line in lines}
    phases, at = [], 0.0
    for name, end in PHASES:
        seconds = ends[end]["at"] - began
        phases.append({"name": name, "from": at, "to": seconds})
        at = seconds
    told = [line for line in done.stderr.splitlines() if "tload exec:" in line]
    return {
        "case": vars(case),
        "token": done.stdout.split("TOKEN")[1].splitlines()[0].strip(),
        "seconds": at,
        "phases": phases,
        "torch_imported": [line["at"] - began for line in lines if line["name"] == "torch imported"],
        "load_cpu_seconds": ends["load_weights ends"]["cpu_seconds"],
        "load_wait_seconds": ends["load_weights ends"]["wait_seconds"],
        "files": state,
        **({"told": told[-1]} if told else {}),
    }


def cases(options: argparse.Namespace) -> list[Case]:
    loaders = ["default", "tload"]
    loaders += ["tload, plan"] if options.plan else []
    loaders += ["Run:ai"] if options.runai or _has("runai_model_streamer") else []
    listed = [
        Case(model, loader, source, layout, mode)
        for model, source, layout, mode, loader in itertools.product(
            options.models, options.sources, options.layouts, options.modes, loaders
        )
        if not (source == S3 and loader == "default")  # it reads no stores
    ]
    if options.throttle:
        # Without compilation: it hides nothing that imports do not.
        listed += [
            Case(model, "tload", SLOW, layout, "eager", ahead)
            for model, layout, ahead in itertools.product(options.models, options.layouts, (False, True))
            if model != "tiny"
        ]
    return listed


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None


def seconds(run: dict[str, Any], phase: str) -> float:
    return next(float(each["to"] - each["from"]) for each in run["phases"] if each["name"] == phase)


def table(runs: list[dict[str, Any]]) -> str:
    """Return the medians as Markdown."""
    lines = [
        "| model | loader, source, layout, mode | runs | first token, s | load, s | its CPU, s | its waits, s |",
        "|:--|:--|--:|--:|--:|--:|--:|",
    ]
    for case, group in grouped(runs):
        good = [run for run in group if "error" not in run]
        if not good:
            lines.append(f"| {case.model} | {case.title} | 0 | {group[0]['error']} | | | |")
            continue
        figures = [
            [run["seconds"] for run in good],
            [seconds(run, "load_weights") for run in good],
            [run["load_cpu_seconds"] for run in good],
            [run["load_wait_seconds"] for run in good],
        ]
        shown = " | ".join(f"{statistics.median(each):.2f}" for each in figures)
        lines.append(f"| {case.model} | {case.title} | {len(good)} | {shown} |")
    return "\n".join(lines)


def grouped(runs: list[dict[str, Any]]) -> list[tuple[Case, list[dict[str, Any]]]]:
    groups: dict[Case, list[dict[str, Any]]] = {}
    for run in runs:
        groups.setdefault(Case(**run["case"]), []).append(run)
    return list(groups.items())


def waterfall(runs: list[dict[str, Any]]) -> str:
    """Return the picture: of each case, the run whose first token came in the median time."""
    rows = []
    for case, group in grouped(runs):
        good = sorted((run for run in group if "error" not in run), key=lambda run: run["seconds"])
        if good:
            run = good[len(good) // 2]
            told = f"load: {seconds(run, 'load_weights'):.2f} s, CPU {run['load_cpu_seconds']:.2f} s, "
            told += f"waits {run['load_wait_seconds']:.2f} s"
            rows.append(picture.Row(f"{case.model}: {case.title}", run["phases"], run["torch_imported"], told))
    return picture.draw(rows, [name for name, _ in PHASES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--sources", nargs="*", choices=[DISK, WARM, S3], default=[DISK, WARM, S3])
    parser.add_argument("--layouts", nargs="+", choices=["one process", "default"], default=["one process", "default"])
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--throttle", type=float, metavar="BYTES", help="bytes per second of the slow store")
    parser.add_argument("--runai", metavar="FOLDER")
    parser.add_argument("--tload", nargs="+", default=[sys.executable, "-m", "tload"], help="command of tload exec")
    parser.add_argument("--plan", type=json.loads, metavar="JSON")
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD", help="cases whose title has one of these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/var/tmp", help="where the models are written")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--draw", type=Path, metavar="JSON", help="draw and print earlier results")
    options = parser.parse_args()
    runs = json.loads(options.draw.read_text())["runs"] if options.draw else measure(options)
    if options.out:
        head = {"machine": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "command": sys.argv}
        options.out.write_text(json.dumps(head | {"runs": runs}, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(waterfall(runs))
    print(table(runs))


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    listed = [case for case in cases(options) if any(word in case.title for word in options.only)]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for model in options.models:
            make(folder, model)
        urls: dict[str, str] = {}
        variables: dict[str, dict[str, str]] = {}
        if any(case.source in (S3, SLOW) for case in listed):
            program = servers.find("versitygw") or sys.exit("versitygw is missing: make servers")
            (folder / "server").mkdir()
            s3 = stack.enter_context(servers.versitygw(program, folder / "server"))
            urls = {model: s3.put_folder("models", model, folder / model) for model in options.models}
            slow = stack.enter_context(throttled(s3.port, options.throttle)) if options.throttle else s3.port
            for source, port in ((S3, s3.port), (SLOW, slow)):
                variables[source] = {
                    "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                    "AWS_ACCESS_KEY_ID": s3.access_key_id,
                    "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
                    "AWS_REGION": servers.REGION,
                    "AWS_EC2_METADATA_DISABLED": "true",
                    "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
                }
        place = Place(folder, urls, variables)
        for number in range(options.rounds):
            turn = number % len(listed)
            for case in listed[turn:] + listed[:turn]:
                runs.append(start(case, place, options))
                run = runs[-1]
                print(f"{number + 1}: {case.model}: {case.title}: {run.get('error', run.get('seconds'))}", flush=True)
                if options.out:
                    options.out.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    _same_tokens(runs)
    return runs


def _same_tokens(runs: list[dict[str, Any]]) -> None:
    """Stop if loaders of one model do not agree on the token."""
    for model, mode in itertools.product(SHAPES, ("eager", "compiled")):
        good = [run for run in runs if "token" in run and (run["case"]["model"], run["case"]["mode"]) == (model, mode)]
        if len({run["token"] for run in good}) > 1:
            raise SystemExit(f"{model}, {mode}: loaders disagree: {sorted({run['token'] for run in good})}")


if __name__ == "__main__":
    main()
