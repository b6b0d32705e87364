"""Every code block of the README and the docs runs as it is, or says why it cannot, and is always
checked."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import clouds
import forked
import tload
from conftest import require, skip_loudly
from documents import Block, blocks_of
from files import Content, write_checkpoint, write_file
from servers import find
from tload._options.keywords import LoadKeywords, OptionKeywords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import S3

ROOT = Path(__file__).parent.parent
PACKAGE = Path(tload.__file__).parent

# Design notes are records: they may quote code that has been removed.
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "design")]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

OWN = {"tload", "runai_model_streamer"}
"""Packages that need not be installed: ours, and those that ours replaces."""

COMMANDS = {"tload", "tensorload"}
"""Names of the command. Programs start it by the second one: procps has a `tload` too."""

SHELLS = {"bash", "console"}
LANGUAGES = {"python", "rust", "json", "toml", "text", "yaml", *SHELLS}

NOT_RUN = {
    "README.md": 2,
    "docs/api/integrations.md": 3,
    "docs/api/report.md": 1,
    "docs/clouds/azure.md": 2,
    "docs/clouds/gcs.md": 2,
    "docs/clouds/huggingface.md": 2,
    "docs/clouds/oci.md": 4,
    "docs/clouds/s3-compatible.md": 2,
    "docs/deltas.md": 1,
    "docs/deploy.md": 3,
    "docs/from/fastsafetensors.md": 2,
    "docs/from/flashpack.md": 2,
    "docs/from/instanttensor.md": 2,
    "docs/from/tensorizer.md": 2,
    "docs/mirrors.md": 2,
    "docs/prefetch.md": 1,
    "docs/quickstart.md": 2,
    "docs/reference/cache.md": 2,
    "docs/reference/engines.md": 1,
    "docs/reference/scale-out.md": 2,
    "docs/reference/sealed.md": 3,
    "docs/reference/sources.md": 3,
    "docs/scale-out.md": 2,
    "docs/sealed.md": 2,
    "docs/serve.md": 2,
    "docs/sources.md": 1,
    "docs/troubleshooting.md": 4,
    "docs/tuning.md": 1,
    "docs/verify.md": 3,
    "docs/with/command.md": 4,
    "docs/with/dcp.md": 2,
    "docs/with/pytorch.md": 1,
    "docs/with/rust.md": 2,
    "docs/with/sglang.md": 4,
    "docs/with/transformers.md": 4,
    "docs/with/vllm.md": 7,
}
"""Number of blocks of a page that are not run. One more needs a decision, not only a comment."""

PATIENCE = 280.0
"""Seconds: a page that takes longer hangs."""


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [block for block in blocks_of(page) if block.reason is None and block.language in {"python", *SHELLS}]
    if not blocks:
        return
    for module in sorted({"torch", "numpy", "ml_dtypes"}.union(*(imports(block) for block in blocks))):
        require(module)
    make_model_dir(tmp_path)
    environment = {
        "PATH": sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"],
        "HF_HOME": str(tmp_path / "hf"),
    }
    with ExitStack() as servers:
        if any("s3://" in block.text for block in blocks):
            environment |= fill_bucket(request.getfixturevalue("s3"), tmp_path / "model_dir")
        if any("hf://" in block.text for block in blocks):
            environment |= fill_hub(servers.enter_context(require("hub").hub()), tmp_path / "model_dir")
        if any("gs://" in block.text for block in blocks):
            program = server("fake-gcs-server", find("fake-gcs-server"))
            environment |= servers.enter_context(clouds.gcs(program, tmp_path / "gcs", "bucket", objects(tmp_path)))
        if any("az://" in block.text for block in blocks):
            program = server("azurite", find(str(clouds.AZURITE)))
            environment |= servers.enter_context(clouds.azure(program, tmp_path / "az", "container", objects(tmp_path)))
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            process = forked.process(run_blocks, blocks, tmp_path)
            process.start()
        process.join(PATIENCE)
        process.kill()
        process.join()
    assert process.exitcode == 0


def run_blocks(blocks: list[Block], folder: Path) -> None:
    """Run the blocks of a page one after the other, as one program, in `folder`."""
    os.chdir(folder)
    # As for a program in that folder.
    sys.path[:] = [str(folder), *(path for path in sys.path if Path(path) not in {ROOT, ROOT / "tests"})]
    namespace = {"__name__": "__main__"}
    for block in blocks:
        if block.language == "python":
            # Tracebacks then name the line of the page.
            exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), namespace)
        else:
            sys.stderr.write(f"{where(block)}\n")
            subprocess.run(["bash", "-euc", "\n".join(block.commands)], check=True, stdin=subprocess.DEVNULL)


def make_model_dir(folder: Path) -> None:
    """Make the `model_dir` that the pages load."""
    path = folder / "model_dir"
    path.mkdir()
    layers = [
        {
            f"model.layers.{layer}.{name}.weight": Content.random("BF16", (8, 16), layer)
            for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
        }
        for layer in range(2)
    ]
    # Names and shards are those of the checkpoint that the quickstart makes.
    layers[0]["model.embed_tokens.weight"] = Content.random("BF16", (3, 16), 0)
    layers[1]["lm_head.weight"] = Content.random("F32", (3, 5), 0)
    write_checkpoint(path, layers)


def fill_bucket(s3: S3, folder: Path) -> dict[str, str]:
    """Store the checkpoints that the pages load from buckets, and return the variables for access
    to them."""
    for bucket in ("bucket", "bucket-eu"):
        s3.put_folder(bucket, "model", folder)
    body = folder.parent / "b.safetensors"
    write_file(body, {"b": Content.random("F32", (4,), 0)})
    s3.put("bucket", "b.safetensors", body.read_bytes())
    return {
        "AWS_ENDPOINT_URL": s3.store["endpoint"],
        "AWS_ACCESS_KEY_ID": s3.store["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": s3.store["secret_access_key"],
        "AWS_REGION": s3.store["region"],
    }


def server(name: str, program: str | None) -> str:
    """Return the program of a server, or skip loudly."""
    return program or skip_loudly("servers", f"{name} is not in .tools: tools/servers {name} installs it")


def objects(folder: Path) -> dict[str, bytes]:
    """Return the files of `model_dir` as the objects that the pages load from clouds."""
    return {f"model/{path.name}": path.read_bytes() for path in (folder / "model_dir").iterdir()}


def fill_hub(hub: Any, folder: Path) -> dict[str, str]:
    """Make a model for the pages that load from the hub, and return the variables for access to
    it."""
    hub.commit("org/name", {path.name: path.read_bytes() for path in folder.iterdir()})
    return {"HF_ENDPOINT": hub.url}


def all_blocks(*languages: str) -> Iterator[Block]:
    found = [block for page in PAGES for block in blocks_of(page) if block.language in languages]
    assert found
    yield from found


def where(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


def test_every_code_block_is_found() -> None:
    for page in PAGES:
        lines = page.read_text().splitlines()
        fences = [number for number, line in enumerate(lines, 1) if line.lstrip().startswith("```")]
        found = {block.line - 1 for block in blocks_of(page)}
        # Every other one opens a block.
        lost = [f"{page}:{number}" for number in fences[::2] if number not in found]
        assert not lost, "a block that is not closed, or not at the margin"
        for block in blocks_of(page):
            assert block.language in LANGUAGES, f"{where(block)}: {block.language!r}"


def test_docs_run_only_allowed_commands() -> None:
    for block in all_blocks(*SHELLS):
        for command in block.commands:
            words = words_of(command)
            assert block.reason or words[0] in {*COMMANDS, "python"}, f"{where(block)}: would run {command}"


def test_programs_start_the_command_by_the_name_that_is_its_own() -> None:
    started = set()
    for block in all_blocks("python"):
        for node in ast.walk(ast.parse(block.text)):
            match node:
                case ast.List(elts=[ast.Constant(value=str(program)), _, *_]) if program in COMMANDS:
                    started.add(program)
                    assert program == "tensorload", f"{where(block)}: procps has a tload too"
    assert started


def test_pages_outside_the_site_have_no_prompts() -> None:
    """GitHub's copy buttons would copy them; the site's leave them out (`docs/assets/site.css`)."""
    for name in ("README.md", "CONTRIBUTING.md"):
        assert "```console" not in (ROOT / name).read_text(), f"{name}: a block with prompts"


def test_pages_that_show_numpy_name_its_extra() -> None:
    """Most models are bfloat16, which numpy lacks without ml_dtypes."""
    pages = [page for page in PAGES if re.search(r"framework=\"(numpy|np)\"", page.read_text())]
    assert pages
    for page in pages:
        assert "[numpy]'" in page.read_text(), f"{page}: names no way to load bfloat16"


def test_skipped_blocks_are_counted() -> None:
    counts = {}
    for page, name in zip(PAGES, NAMES, strict=True):
        reasons = [block.reason for block in blocks_of(page) if block.reason is not None]
        assert len(reasons) == page.read_text().count("<!-- not run:"), f"{name}: a comment without a block"
        if reasons:
            counts[name] = len(reasons)
    assert counts == NOT_RUN


def test_python_blocks_compile_and_use_existing_names() -> None:
    for block in [*all_blocks("python"), *docstring_blocks()]:
        tree = ast.parse(block.text, filename=where(block))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tload":
                for alias in node.names:
                    check_name(block, [*node.module.split("."), alias.name])
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    check_name(block, alias.name.split("."))
            elif isinstance(node, ast.Attribute) and re.fullmatch(r"[\w.]+", path := ast.unparse(node)):
                check_name(block, path.split("."))
            elif isinstance(node, ast.Call):
                check_keywords(block, node)


CALLED_BY_OTHERS = {
    "tload.dcp.StorageReader": "torch.distributed.checkpoint calls its methods",
    "tload.dcp.StorageWriter": "torch.distributed.checkpoint calls its methods",
}
"""Classes of the reference whose methods no program calls itself."""


def test_every_function_of_the_reference_has_an_example() -> None:
    """Its page calls it, in a block that the tests run or that says why not. Objects that a program
    only receives (errors, parts of reports) need none, but for their methods."""
    checked = 0
    for page, path in documented():
        used = set().union(*(names_in(block) for block in blocks_of(page) if block.language == "python"))
        functions = set(functions_of(path))
        checked += len(functions)
        assert functions <= used, f"{page}: no example of {path}: {sorted(functions - used)}"
    assert checked > 50


def documented() -> Iterator[tuple[Path, str]]:
    """Return the pages of the reference, each with the dotted names of its objects."""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        yield from ((page, path) for path in re.findall(r"^::: (tload[\w.]*)", page.read_text(), re.MULTILINE))


def docstring_blocks() -> Iterator[Block]:
    """Return the examples in the docstrings that the reference shows."""
    for page, path in documented():
        found = locate(path)
        for member in [found, *(vars(found).values() if inspect.isclass(found) else ())]:
            examples = doctest.DocTestParser().get_examples(inspect.getdoc(member) or "")
            if examples:
                yield Block(page, examples[0].lineno, "python", "".join(one.source for one in examples), None)


def functions_of(path: str) -> Iterator[str]:
    """Return the names of a function, of the functions of a module, or of a class and its methods."""
    found = locate(path)
    if inspect.ismodule(found):
        functions = inspect.getmembers(found, inspect.isfunction)
        yield from (name for name, one in functions if one.__module__ == path and not name.startswith("_"))
    elif not inspect.isclass(found) or path in CALLED_BY_OTHERS:
        yield path.rpartition(".")[2]
    else:
        members = (name for name in vars(found) if not name.startswith("_") and callable(getattr(found, name)))
        yield from (name for name in members if not isinstance(getattr(found, name), type))


def locate(path: str) -> Any:
    """Return an object by its dotted name."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            found = getattr(found, name)
        return found
    raise AssertionError(path)


def names_in(block: Block) -> set[str]:
    """Return the names and attributes that a block reads."""
    nodes = list(ast.walk(ast.parse(block.text)))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


def check_name(block: Block, path: list[str]) -> None:
    """Fail if `path` begins with `tload` and does not exist, without importing other packages."""
    if path[0] != "tload":
        return
    module = PACKAGE
    for name in path[1:]:
        inner = module / name
        if not (inner.is_dir() or inner.with_suffix(".py").exists()):
            assert name in defined_in(module), f"{where(block)}: {module.relative_to(PACKAGE.parent)} has no {name}"
            return
        module = inner


@cache
def defined_in(module: Path) -> set[str]:
    """Return the names that a module's source defines or imports."""
    source = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def check_keywords(block: Block, call: ast.Call) -> None:
    """Fail if a call of one of our functions passes a keyword that it does not take."""
    match ast.unparse(call.func):
        case "tload.stream" | "tload.load":
            known = {"source", *LoadKeywords.__optional_keys__, "framework"}
        case "tload.load_into":
            known = set(inspect.signature(tload.load_into).parameters) | OptionKeywords.__optional_keys__
        case "tload.open":
            known = set(inspect.signature(tload.open).parameters)
        case "tload.Options":
            known = set(OptionKeywords.__optional_keys__)
        case "tload.S3" | "tload.GCS" | "tload.Azure" | "tload.HuggingFace" | "tload.HTTP" | "tload.OCI" as name:
            known = set(inspect.signature(getattr(tload, name.rpartition(".")[2])).parameters)
        case _:
            return
    for keyword in call.keywords:
        assert keyword.arg in {None, *known}, f"{where(block)}: {ast.unparse(call.func)} takes no {keyword.arg}"


STORE_KEYS = {name for name, _, _ in tload._tload.STORE_KEYS}
"""Options of object stores. Names of headers follow `header.`."""


def test_documented_options_of_stores_exist() -> None:
    """In `--store KEY=VALUE`, in dicts for `store=`, in tables of options, as `KEY=true`, and in
    configuration files."""
    forms = set()
    for page, name in zip(PAGES, NAMES, strict=True):
        tables = [tomllib.loads(block.text).get("store", {}) for block in blocks_of(page) if block.language == "toml"]
        keys = {key for table in tables for one in (table, *table.values()) if isinstance(one, dict) for key in one}
        settings = [("toml", key) for key in keys if "://" not in key]
        for form, key in [*store_options_of(page.read_text()), *settings]:
            forms.add(form)
            assert key in STORE_KEYS or key.startswith("header."), f"{name}: no store has the option {key} ({form})"
    assert forms == {"flag", "dict", "span", "table", "toml"}


def store_options_of(text: str) -> Iterator[tuple[str, str]]:
    """Return the options of stores that a page names, each with the form that it has there."""
    yield from (("flag", key) for key in re.findall(r"--store[ =]([a-z_.-]+)=", text))
    for given in re.findall(r"\bstore=\{([^}]*)\}", text):
        yield from (("dict", key) for key in re.findall(r"[\"']([^\"']+)[\"']:", given))
    # Python's are True and False.
    yield from (("span", key) for key in re.findall(r"`([a-z_.]+)=(?:true|false)`", text))
    for table in re.findall(
        r"^\| option(?: \| (?:when|note) \|| of the store \|.*)\n(.*(?:\n\|.*)*)", text, re.MULTILINE
    ):
        cells = (row.split("|")[1] for row in table.splitlines()[1:])
        yield from (("table", key) for cell in cells for key in re.findall(r"`([\w.]+)(?:=[^`]*)?`", cell))


def imports(block: Block) -> set[str]:
    """Return the modules that a block imports, except Python's own and ours."""
    if block.language != "python":
        return set()
    found: set[str] = set()
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return {name for name in found if name not in {*sys.stdlib_module_names, *OWN}}


def words_of(command: str) -> list[str]:
    """Return the words of a command, without leading assignments of variables."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    return words


@cache
def help_of(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tload", *command, "--help"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pages_share_a_directory() -> None:
    """A reader may run the commands of all pages in one directory: none finds what another page has
    left there, and refuses it."""
    made: dict[str, str] = {}
    copied: dict[str, str] = {}
    for block in all_blocks(*SHELLS):
        for words in map(words_of, block.commands):
            match words:
                case ["tload", "synth", folder, *_] if block.reason is None:
                    assert folder not in made, f"{where(block)}: {folder} was made by {made[folder]}"
                    made[folder] = where(block)
                case ["tload", "verify", source, *options] if "--write" in options and block.reason is None:
                    is_first = block.page.name == "README.md"
                    assert is_first or "--force" in options, f"{where(block)}: {source} has the manifest of the README"
                case ["tload", "cp", source, folder, *_] if block.reason is None:
                    assert copied.setdefault(folder, source) == source, f"{where(block)}: {folder} has another copy"
    assert len(made) > 2
    assert copied


def test_documented_options_exist() -> None:
    checked = 0
    for block in all_blocks(*SHELLS):
        for command in block.commands:
            words = words_of(command)
            if words[:2] == ["tload", "exec"]:
                words = words[: words.index("--")]  # Behind it is another command.
            if words[:2] == ["docker", "run"] and "tload" in words:
                words = words[words.index("tload") :]  # The image, whose entry point is the command.
            if words[0] not in COMMANDS:
                continue
            checked += 1
            if words[1].startswith("-"):
                known = help_of()
            else:
                assert re.search(rf"^  {words[1]} ", help_of(), re.MULTILINE), f"{where(block)}: no command {words[1]}"
                known = help_of(words[1])
                if words[2:] and re.search(rf"^  {re.escape(words[2])} ", known, re.MULTILINE):
                    known = help_of(words[1], words[2])
            for option in (word.partition("=")[0] for word in words if word.startswith("--")):
                assert re.search(rf"{option}\b", known), f"{where(block)}: {words[1]} has no {option}"
    assert checked


def test_rust_blocks_are_quoted_from_compiled_code() -> None:
    """Quoted from the crate's examples, or from code that its documentation compiles."""
    libraries = [ROOT / "crates" / name / "src" / "lib.rs" for name in ("core", "config")]
    sources = [*(ROOT / "crates" / "core" / "examples").glob("*.rs"), *libraries]
    compiled = [code_lines(source.read_text()) for source in sources]
    for block in all_blocks("rust"):
        quoted = code_lines(block.text)
        found = any(lines[start : start + len(quoted)] == quoted for lines in compiled for start in range(len(lines)))
        assert block.reason or found, f"{where(block)}: in no example"


def code_lines(text: str) -> list[str]:
    lines = (line.strip().removeprefix("//!").strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("# ")]


def test_data_is_well_formed() -> None:
    for block in all_blocks("json", "toml"):
        json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)


def test_documented_engine_settings_are_accepted_by_plugins() -> None:
    settings = require("tload.vllm._settings")
    given = [block.text for block in all_blocks("json")]
    for block in all_blocks(*SHELLS):
        words = [word for command in block.commands for word in words_of(command)]
        given += [after for word, after in pairwise(words) if word == "--model-loader-extra-config"]
    assert len(given) > 1
    for text in given:
        settings.read(json.loads(text))


def test_documented_variables_are_read() -> None:
    sources = [*PACKAGE.rglob("*.py"), *(ROOT / "crates").rglob("*.rs")]
    read = set(re.findall(r"(?:RUNAI_STREAMER|TLOAD)_[A-Z0-9_]+", "\n".join(source.read_text() for source in sources)))
    for page in PAGES:
        for variable in re.findall(r"(?:RUNAI_STREAMER|TLOAD)_[A-Z0-9_]+\b", page.read_text()):
            assert variable in read, f"{page}: nothing reads {variable}"
