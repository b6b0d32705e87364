# Sourced by the scripts beside it, which make releases. Sets the folder, the version and the flags
# that make builds reproducible.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n1)
dist=$PWD/target/dist
mkdir -p "$dist"

# The same commit gives the same bytes, wherever and whenever it is built.
export CARGO_INCREMENTAL=0
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
export RUSTFLAGS="--remap-path-prefix=$PWD=. --remap-path-prefix=$registry=crates"
export CFLAGS="-ffile-prefix-map=$PWD=. -ffile-prefix-map=$registry=crates"

fail() { echo "${0#"$PWD"/}: $*" >&2; exit 1; }

# skip NAME REASON: prints a skip, or fails if TLOAD_REQUIRE names it.
skip() {
    echo "SKIPPED: needs $1: $2"
    case ",${TLOAD_REQUIRE:-}," in *,all,* | *,"$1",*) fail "TLOAD_REQUIRE forbids the skip" ;; esac
}

# largest FILE MIB: fails if the file is larger.
largest() {
    local bytes
    bytes=$(stat -c %s "$1")
    printf '%6.2f MiB  %s  %s\n' "$(bc -l <<<"$bytes / 1048576")" "$(sha256sum <"$1" | cut -c1-16)" "${1##*/}"
    ((bytes <= $2 << 20)) || fail "$1 has $bytes bytes, more than $2 MiB"
}
