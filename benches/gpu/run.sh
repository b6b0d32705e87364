#!/usr/bin/env bash
# Checks and measures loads to a GPU with one command, in less than nine minutes, fetching nothing.
#
#     benches/gpu/run.sh WHEELS [OUT] [option of measure.py]…
#
# WHEELS is a directory of wheels for this machine's Python: tload's own, and those of the peers
# (instanttensor, fastsafetensors, runai_model_streamer, safetensors 0.9 or newer). A peer without a
# wheel is skipped with a message. OUT is the directory for results: $OUT, or ./gpu-results. PYTHON
# names an interpreter that has torch and safetensors; SECONDS_MAX is the total time. Checkpoints are
# created in /dev/shm (25 GiB; where a container's is smaller, in another tmpfs, or else in the page
# cache of --disk, with a message) and on --disk (/var/tmp; 25 GiB more). `--dry-run` tries everything
# on a machine without a GPU, without meaningful figures.
set -euo pipefail

usage() {
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"
}

case "${1:-}" in
'' | -h | --help)
    usage
    exit "$([ $# -gt 0 ] && echo 0 || echo 2)"
    ;;
esac

wheels=$1
shift
out=${OUT:-gpu-results}
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
    out=$1
    shift
fi
python=${PYTHON:-python3}
seconds_max=${SECONDS_MAX:-525}
here=$(cd "$(dirname "$0")" && pwd)
device=cuda:0
for argument in "$@"; do
    if [ "$argument" = --dry-run ]; then device=cpu; fi
done

mkdir -p "$out"
site=$(mktemp -d -t tload-gpu-site-XXXXXX)
trap 'rm -rf "$site"' EXIT

source "$here/install.sh"
install_all || exit 1

status=0
PYTHONPATH=$site/tload timeout 150 "$python" -W ignore "$here/check.py" "$out" --device "$device" 2>&1 | tee "$out/check.txt" || status=1
echo "checked after $SECONDS s" >&2

left=$((seconds_max - SECONDS))
timeout $((left + 15)) "$python" "$here/measure.py" "$out" --site "$site" --budget "$left" "$@" || status=1
echo "finished after $SECONDS s; results are in $out" >&2
exit $status
