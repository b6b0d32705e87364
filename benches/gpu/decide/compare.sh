#!/usr/bin/env bash
# Checks the bytes of loads with all flags, compares the variants of loads to a GPU, and decides: at
# most 325 s, fetching nothing.
#
#     benches/gpu/decide/compare.sh [OUT] [option of compare.py]…
#
# Installs the wheels that `pack.sh` has put into dist/decide (WHEELS names another directory). OUT is
# the directory for results: $OUT, or ./gpu-results; decisions use `experiments.txt` there, if
# `experiments.sh` has run before. PYTHON names an interpreter that has torch and safetensors.
# REHEARSAL=1 tries everything on the stub driver in LD_LIBRARY_PATH, with tiny checkpoints and
# without meaningful figures. SECONDS_MAX is the total time.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
wheels=${WHEELS:-$here/../../../dist/decide}
out=${OUT:-gpu-results}
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
    out=$1
    shift
fi
python=${PYTHON:-python3}
seconds_max=${SECONDS_MAX:-325}
device=cuda:0
rehearsal=()
if [ -n "${REHEARSAL:-}" ]; then
    rehearsal=(--rehearsal)
    # The checks need a GPU that torch can use.
    device=cpu
    echo 'REHEARSAL: the checks of bytes use the CPU, where flags change nothing' >&2
fi

mkdir -p "$out"
site=$(mktemp -d -t tload-decide-site-XXXXXX)
trap 'rm -rf "$site"' EXIT
source "$here/../install.sh"
install_all || exit 1

status=0
flags=$("$python" -c "import sys; sys.path.insert(0, '$here'); import variants; print(variants.EVERY_FLAG)")
PYTHONPATH=$site/tload TLOAD_TRY=$flags timeout 90 "$python" -W ignore "$here/../check.py" "$site" --device "$device" 2>&1 |
    tee "$out/check.txt" || status=1
echo "checked with TLOAD_TRY=$flags after $SECONDS s" >&2

left=$((seconds_max - SECONDS - 5))
timeout $((left + 5)) "$python" "$here/compare.py" "$out" --site "$site" --budget "$left" "${rehearsal[@]}" "$@" || status=1
"$python" "$here/decide.py" "$out" | tee "$out/decision.md"
echo "finished after $SECONDS s; results are in $out" >&2
exit $status
