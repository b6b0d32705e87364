# Sourced: installs wheels, each package into a directory of its own. Needs `python`, `wheels` and
# `site`, a directory.

# install NAME MODULE WHEEL…: installs into a directory of its own, so that packages do not affect
# each other.
install() {
    local name=$1 module=$2
    shift 2
    if [ ! -e "$1" ]; then
        echo "SKIPPED: $name: no wheel in $wheels" >&2
        return 1
    fi
    if ! "$python" -m pip install --quiet --no-index --no-deps --disable-pip-version-check --root-user-action ignore \
        --target "$site/$name" "$@" >&2; then
        echo "SKIPPED: $name: cannot install its wheel" >&2
        rm -rf "${site:?}/$name"
        return 1
    fi
    if ! PYTHONPATH=$site/$name timeout 60 "$python" -W ignore -c "import torch, $module" >&2; then
        echo "SKIPPED: $name: cannot import it" >&2
        rm -rf "${site:?}/$name"
        return 1
    fi
}

# install_all: tload and every peer that has a wheel.
install_all() {
    install tload tload "$wheels"/tload-*.whl || return 1
    install instanttensor instanttensor "$wheels"/instanttensor-*.whl || true
    install fastsafetensors fastsafetensors "$wheels"/fastsafetensors-*.whl || true
    install runai runai_model_streamer "$wheels"/runai_model_streamer-*.whl || true
    install prefetch 'safetensors; safetensors.safe_open.prefetch' "$wheels"/safetensors-*.whl || true
    echo "installed after $SECONDS s: $(ls "$site" | tr '\n' ' ')" >&2
}
