#!/usr/bin/env python3
"""Builds the container image of the command, as deploy/Dockerfile says.

    tools/release/image.py [ARCHIVE]            builds tload:VERSION with docker, podman or buildah
    tools/release/image.py --check [ARCHIVE]    builds it in a scratch directory, and runs it

ARCHIVE is the static build of the command, by default the one in `target/dist`. The check needs no
container engine: it builds with buildah if there is one, and else replays the Dockerfile; it runs
the image's root file system with bubblewrap. It prints SKIPPED, or fails if TLOAD_REQUIRE says so,
where bubblewrap or the archive is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
USER = "65532:65532"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="build in a scratch directory, and run it")
    parser.add_argument("archive", nargs="?", type=Path)
    given = parser.parse_args()
    archives = [given.archive] if given.archive else sorted((ROOT / "target/dist").glob("tload-*-linux-musl.tar.gz"))
    if len(archives) != 1 or not archives[0].exists():
        return skip("static-command", f"{len(archives)} archives in target/dist (make command builds it)")
    (ROOT / "target").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tload-image-", dir=ROOT / "target") as scratch:
        context = Path(scratch) / "context"
        version = stage(archives[0], context)
        return check(context, version, Path(scratch)) if given.check else build(context, version)


def skip(name: str, reason: str) -> int:
    print(f"SKIPPED: needs {name}: {reason}")
    required = {word.strip() for word in os.environ.get("TLOAD_REQUIRE", "").split(",")}
    return int(bool(required & {name, "all"}))


def stage(archive: Path, context: Path) -> str:
    """Make the context of the Dockerfile, and return the version of the command."""
    root, unpacked = context / "root", context.parent / "unpacked"
    with tarfile.open(archive) as files:
        files.extractall(unpacked, filter="data")
    (command,) = (path for path in unpacked.rglob("tload") if path.is_file() and os.access(path, os.X_OK))
    for folder in ("etc/ssl/certs", "tmp", "usr/bin", "usr/share/doc/tload"):
        (root / folder).mkdir(parents=True)
    for folder in (root, *(path for path in root.rglob("*"))):
        folder.chmod(0o755)
    (root / "tmp").chmod(0o1777)
    shutil.copy(command, root / "usr/bin/tload")
    (root / "usr/bin/tload").chmod(0o755)
    (root / "usr/bin/tensorload").symlink_to("tload")
    shutil.copy(CERTIFICATES, root / "etc/ssl/certs")
    (root / "etc/passwd").write_text("tload:x:65532:65532::/tmp:/sbin/nologin\n")
    for path in {ROOT / "LICENSE", *unpacked.rglob("*LICEN*"), *unpacked.rglob("*THIRD*")}:
        if path.is_file():
            shutil.copy(path, root / "usr/share/doc/tload")
    done = run([str(root / "usr/bin/tload"), "--version"], capture_output=True)
    return done.stdout.split()[-1]


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}: status {done.returncode}\n{done.stdout or ''}{done.stderr or ''}")
    return done


def build(context: Path, version: str) -> int:
    """Build with the first engine that answers."""
    arguments = ["--file", str(DOCKERFILE), "--build-arg", f"VERSION={version}", "--tag", f"tload:{version}"]
    for probe, command in (
        (["docker", "info"], ["docker", "build"]),
        (["podman", "info"], ["podman", "build"]),
        (["buildah", "info"], ["buildah", "bud"]),
    ):
        if shutil.which(probe[0]) and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            run([*command, *arguments, "--tag", "tload", str(context)])
            return 0
    return skip("container-engine", "neither docker, podman nor buildah works")


def check(context: Path, version: str, scratch: Path) -> int:
    """Build the image, and run the command in it as its user."""
    if shutil.which("bwrap") is None:
        return skip("bubblewrap", "no bwrap in PATH")
    if shutil.which("buildah") and os.geteuid() == 0:
        root, config = built(context, version, scratch)
    else:
        print("SKIPPED: needs buildah, as root: the Dockerfile is replayed")
        root, config = replayed(context, version, scratch)
    wanted = {"User": USER, "Entrypoint": ["/usr/bin/tload"], "WorkingDir": "/tmp"}  # noqa: S108
    found = {key: config[key] for key in wanted}
    if found != wanted or config["Labels"]["org.opencontainers.image.version"] != version:
        sys.exit(f"the image's configuration is {config}")
    work = scratch / "work"
    work.mkdir()
    # Without certificates no request could be sent, so this one would not be refused.
    trusted = inside(root, work, config, ["ls", "https://127.0.0.1:9/model.safetensors", "--store", "retries=0"])
    if "refuses connections" not in trusted.stderr:
        sys.exit(f"a request by HTTPS: {trusted.stderr}")
    for arguments, expected in (
        ("--version", version),
        ("doctor", "kernel"),
        ("synth /data/model --size 8MiB --shards 2 --quiet", ""),
        ("load /data/model", "complete"),
        ("bench /data/model --rounds 1 --no-fio --cache-state warm", "GB/s"),
    ):
        done = inside(root, work, config, arguments.split())
        if done.returncode != 0 or expected not in done.stdout:
            sys.exit(f"tload {arguments}: status {done.returncode}, no {expected!r} in\n{done.stdout}{done.stderr}")
        print(f"ok: {shlex.join(config['Entrypoint'])} {arguments}")
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    print(f"tload:{version}: {size / 1e6:.1f} MB")
    return 0


def inside(root: Path, work: Path, config: dict, arguments: list[str]) -> subprocess.CompletedProcess[str]:  # type: ignore[type-arg]
    """Run the image's entry point in its root file system, which is read-only but for `/tmp`."""
    # Engines make these.
    for name in ("proc", "dev", "sys", "data"):
        (root / name).mkdir(exist_ok=True)
    user, group = config["User"].split(":")
    mounts = ["--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
    variables = [word for pair in config["Env"] for word in ("--setenv", *pair.split("=", 1))]
    command = ["bwrap", *mounts, "--tmpfs", "/tmp", "--bind", str(work), "/data", "--chdir", config["WorkingDir"]]  # noqa: S108
    command += ["--unshare-all", "--uid", user, "--gid", group, "--clearenv", *variables, "--die-with-parent"]
    return subprocess.run([*command, *config["Entrypoint"], *arguments], capture_output=True, text=True, check=False)


def built(context: Path, version: str, scratch: Path) -> tuple[Path, dict]:  # type: ignore[type-arg]
    """Build with buildah, and return the root file system and the configuration."""
    base = ["buildah", "--storage-driver", "vfs", "--root", str(scratch / "storage"), "--runroot", str(scratch / "run")]
    arguments = ["--isolation", "chroot", "--build-arg", f"VERSION={version}", "--tag", "tload"]
    run([*base, "bud", "--quiet", "--file", str(DOCKERFILE), *arguments, str(context)], capture_output=True)
    container = run([*base, "from", "localhost/tload"], capture_output=True).stdout.strip()
    mounted = run([*base, "mount", container], capture_output=True).stdout.strip()
    inspected = json.loads(run([*base, "inspect", "--type", "image", "localhost/tload"], capture_output=True).stdout)
    # A copy, since the mount would keep the scratch directory busy.
    root = scratch / "root"
    shutil.copytree(mounted, root, symlinks=True)
    run([*base, "rm", container], capture_output=True)
    return root, inspected["OCIv1"]["config"]


def replayed(context: Path, version: str, scratch: Path) -> tuple[Path, dict]:  # type: ignore[type-arg]
    """Do what the Dockerfile says without an engine; an instruction that is unknown here is an error."""
    root = scratch / "root"
    config: dict = {"Env": [], "Labels": {}}  # type: ignore[type-arg]
    text = DOCKERFILE.read_text().replace("\\\n", " ").replace("${VERSION}", version)
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        match word:
            case "" | "#" | "ARG":
                pass
            case "FROM" if rest == "scratch":
                root.mkdir()
            case "LABEL":
                config["Labels"] |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            case "COPY" if rest == "root/ /":
                shutil.copytree(context / "root", root, symlinks=True, dirs_exist_ok=True)
            case "ENV":
                config["Env"].append(rest)
            case "WORKDIR":
                (root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
                config["WorkingDir"] = rest
            case "USER":
                config["User"] = rest
            case "ENTRYPOINT":
                config["Entrypoint"] = json.loads(rest)
            case _:
                sys.exit(f"{DOCKERFILE}: tools/release/image.py cannot replay {line!r}")
    return root, config


if __name__ == "__main__":
    sys.exit(main())
