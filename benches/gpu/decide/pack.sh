#!/usr/bin/env bash
# Packs what a GPU machine without a network needs into dist/decide, which git ignores: wheels of
# tload and of its peers. The C program is built on that machine.
#
#     benches/gpu/decide/pack.sh [WHEEL_OF_TLOAD]
#
# Without an argument, builds a release wheel, which takes minutes. PYTHON_VERSION is that of the GPU
# machine, 3.12 by default. Fails if the tree and the wheels together exceed 60 MiB.
set -euo pipefail

cd "$(dirname "$0")/../../.."
packed=dist/decide
version=${PYTHON_VERSION:-3.12}
python=.venv/bin/python
rm -rf "$packed"
mkdir -p "$packed"

if [ $# -gt 0 ]; then
    cp "$1" "$packed/"
else
    PATH="$PWD/.venv/bin:$PATH" "$python" -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir "$packed" .
fi

abi=cp${version/./}
platforms=()
for glibc in 2_17 2_27 2_28 2_34 2_35; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
for peer in instanttensor==0.2.2 safetensors==0.9.0rc1; do
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$packed" \
        --python-version "$version" --implementation cp --abi "$abi" --abi abi3 --abi none \
        "${platforms[@]}" --platform manylinux2014_x86_64 --platform any "$peer" ||
        echo "SKIPPED: no wheel of $peer for Python $version" >&2
done

tree=$(git ls-files -z | xargs -0 stat --format %s | awk '{ sum += $1 } END { print sum }')
wheels=$(stat --format %s "$packed"/*.whl | awk '{ sum += $1 } END { print sum }')
mib=$(((tree + wheels) / 1048576))
ls -l "$packed"
echo "$mib MiB: the tree $((tree / 1048576)), the wheels $((wheels / 1048576))"
if ((mib > 60)); then
    echo 'pack.sh: more than 60 MiB' >&2
    exit 1
fi
