#!/usr/bin/env bash
# Prints facts about a GPU machine and runs experiments.c there: at most 165 s, fetching nothing.
#
#     benches/gpu/decide/experiments.sh [OUT]
#
# Needs gcc, a driver, and 4 GiB of room in each of /dev/shm, a new tmpfs of huge pages (as root;
# skipped with a message otherwise) and /var/tmp. OUT is the directory for results: $OUT, or
# ./gpu-results. REHEARSAL=1 tries everything on the stub driver in LD_LIBRARY_PATH, with small files
# and without meaningful figures. SECONDS_MAX is the total time.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-${OUT:-gpu-results}}
seconds_max=${SECONDS_MAX:-165}
work=$(mktemp -d -t tload-experiments-XXXXXX)
mkdir -p "$out"
copies=16
if [ -n "${REHEARSAL:-}" ]; then
    copies=1
    export MIBS=64
    echo 'REHEARSAL: a stub driver over host memory, so no figure means anything' >&2
fi
trap 'mountpoint -q "$work/huge" && umount "$work/huge"; rm -rf "$work" /dev/shm/tload-experiments /var/tmp/tload-experiments' EXIT

{
    lscpu | grep -i -e 'model name' -e '^CPU(s)' -e thread -e numa -e L3
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current --format=csv,noheader
    grep . /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/transparent_hugepage/shmem_enabled
    uname -r
} >"$out/facts.txt" 2>&1

gcc -O2 -march=native -pthread "$here/experiments.c" -o "$work/experiments" -ldl || exit 1

# Random bytes, repeated: neither the file systems nor the bus compress.
head -c 256M /dev/urandom >"$work/tile"
files=()
fill() {
    mkdir -p "$1"
    if for ((i = 0; i < copies; i++)); do cat "$work/tile" || exit 1; done >"$1/tload-experiments"; then
        files+=("$1/tload-experiments")
    else
        echo "SKIPPED: no room for $((copies * 256)) MiB in $1" >&2
        rm -f "$1/tload-experiments"
    fi
}
fill /dev/shm
mkdir "$work/huge"
if mount -t tmpfs -o huge=always,size=5g tload-experiments "$work/huge"; then
    fill "$work/huge"
else
    echo 'SKIPPED: cannot mount a tmpfs of huge pages' >&2
fi
fill /var/tmp

grep Dirty /proc/meminfo >>"$out/facts.txt"
# Its path says nothing about the machine.
timeout $((seconds_max - SECONDS)) "$work/experiments" "${files[@]}" 2>&1 |
    sed -u "s|$work/huge|tmpfs of huge pages|" | tee "$out/experiments.txt"
grep Dirty /proc/meminfo >>"$out/facts.txt"
echo "experiments took $SECONDS s; results are in $out" >&2
