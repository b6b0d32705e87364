"""First steps with an installed wheel, without any other package: `python smoke.py FOLDER`."""

import os
import pathlib
import subprocess
import sys

import tload

# An emulator and its interpreter, if this runs in one.
PYTHON = os.environ.get("RUN", sys.executable).split()


def command(*arguments: str) -> str:
    return subprocess.run([*PYTHON, "-m", "tload", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


folder = pathlib.Path(sys.argv[1]) / "model"
command("synth", str(folder), "--size", "8MiB", "--seed", "1")
listed = command("ls", str(folder))
assert "model.embed_tokens.weight" in listed, listed
digest = command("load", str(folder), "--digest").splitlines()[-1]
assert digest == command("load", str(folder), "--digest", "--engine", "pread").splitlines()[-1], digest
with tload.open(folder) as checkpoint:
    names = sorted(checkpoint)
assert names, "the checkpoint has no tensors"
sizes = {name: tensor.nbytes for name, tensor in tload.stream(folder, framework="dlpack")}
assert sorted(sizes) == names
assert command("--version").split()[1] == tload.__version__
print(f"{sys.implementation.name} {sys.version.split()[0]}: {len(names)} tensors, {sum(sizes.values())} bytes")
