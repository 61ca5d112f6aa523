"""Build the images of deploy/Dockerfile with buildah, and run their processes without a container.

A process has the image's files as a read-only root, a /tmp of its own, the image's user and
environment, and the network of this machine. Needs buildah and the rights of root; with `--layers`
a second build takes seconds. `buildah run` cannot make the root read-only without a container
runtime, so a mount namespace (`unshare`) and `chroot` do that.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from support.drive.repository import ROOT
from support.drive.waiting import wait_for
from support.real.ports import free_port

DEBIAN = "bookworm"
BASE = "localhost/penstock-test-python"
# The index and the authorities of this machine, for the build alone: nothing of them stays.
LENT = ("/etc/ssl/certs", "/etc/pip.conf")
BUILD_S = 1500
STOP_S = 30.0

_BASE_FILE = """FROM scratch
ADD root.tar /
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
_RUN = """set -e
mount --bind "$ROOT" "$ROOT"
mount -t tmpfs -o mode=755 tmpfs "$ROOT/dev"
mknod -m 666 "$ROOT/dev/null" c 1 3
mknod -m 666 "$ROOT/dev/urandom" c 1 9
mount -t proc proc "$ROOT/proc"
mount -t tmpfs tmpfs "$ROOT/tmp"
mount -t tmpfs -o uid=10001 tmpfs "$ROOT/var/lib/penstock"
for pair in $MOUNTS; do
    mkdir -p "$ROOT/${pair#*:}"
    mount --bind "${pair%%:*}" "$ROOT/${pair#*:}"
    mount -o remount,ro,bind "$ROOT/${pair#*:}"
done
mount -o remount,ro,bind "$ROOT"
exec chroot --userspec="$USER_ID:$USER_ID" "$ROOT" env -i "$@"
"""


def missing() -> str:
    """Return what this machine lacks to build and run images; empty if it lacks nothing."""
    if shutil.which("buildah") is None:
        return "there is no buildah"
    if os.geteuid() != 0:
        return "buildah's chroot needs the rights of root here"
    return ""


def _buildah(*arguments: str | Path, timeout_s: float = 120) -> str:
    done = subprocess.run(
        ["buildah", *arguments], cwd=ROOT, capture_output=True, timeout=timeout_s, check=False
    )
    said = f"{done.stdout.decode()}{done.stderr.decode()}"
    assert done.returncode == 0, f"buildah {' '.join(map(str, arguments))}\n{said[-4000:]}"
    return done.stdout.decode()


def python_image(folder: Path) -> str:
    """Return the image that the others are built from.

    It is the one that PENSTOCK_PYTHON_IMAGE names, else a Debian by debootstrap, else the one that
    deploy/Dockerfile names, which buildah pulls from a registry.
    """
    if named := os.environ.get("PENSTOCK_PYTHON_IMAGE"):
        return named
    if BASE in _buildah("images", "--format", "{{.Name}}").split():
        return BASE
    if shutil.which("debootstrap") is None:
        return ""
    packages = "python3,python3-venv,ca-certificates"
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={packages}", DEBIAN, folder / "root"],
        check=True,
        capture_output=True,
        timeout=BUILD_S,
    )
    subprocess.run(["tar", "-C", folder / "root", "-cf", folder / "root.tar", "."], check=True)
    (folder / "Dockerfile").write_text(_BASE_FILE)
    _buildah("build", "--isolation", "chroot", "-t", BASE, folder, timeout_s=BUILD_S)
    shutil.rmtree(folder)
    return BASE


@dataclass(frozen=True)
class Image:
    """A built image: the folder of its files, and what a process of it starts with."""

    target: str
    root: Path
    container: str
    config: dict[str, Any]

    @classmethod
    def build(cls, target: str, base: str) -> Image:
        """Build a target of deploy/Dockerfile, and mount its files."""
        name = f"localhost/penstock-test-{target}"
        lent = [f"--volume={path}:{path}:ro" for path in LENT if Path(path).exists()]
        given = [f"--build-arg=PYTHON_IMAGE={base}"] if base else []
        _buildah(
            *("build", "--isolation", "chroot", "--layers", "--format", "docker", *lent, *given),
            *("--target", target, "-f", "deploy/Dockerfile", "-t", name, "."),
            timeout_s=BUILD_S,
        )
        config = json.loads(_buildah("inspect", "--type", "image", name))["Docker"]["config"]
        container = _buildah("from", name).strip()
        return cls(target, Path(_buildah("mount", container).strip()), container, config)

    def remove(self) -> None:
        """Unmount the files. The image stays, so that the next build is quick."""
        _buildah("rm", self.container)

    def components(self) -> set[str]:
        """Return the Python packages in the image's bill of materials."""
        bill = json.loads((self.root / "opt/penstock/share/sbom.cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        return {each["name"].lower().replace("_", "-") for each in bill["components"]}


class Running:
    """A process of an image."""

    def __init__(
        self,
        image: Image,
        folder: Path,
        config: str = "",
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
    ) -> None:
        """Start it.

        `config`: its penstock.yaml. `command`: in place of the image's. `mounts`: by the place in
        the image, folders of this machine, which the process cannot change.
        """
        self.name = image.target
        self.probes = f"http://127.0.0.1:{free_port()}"
        self.url = f"http://127.0.0.1:{free_port()}"
        configs = folder / f"{self.name}-config"
        configs.mkdir(exist_ok=True)
        (configs / "penstock.yaml").write_text(config)
        places = {"/etc/penstock": configs, **(mounts or {})}
        own = {
            **(environment or {}),
            "PENSTOCK_PORT": self.url.rsplit(":", 1)[1],
            "PENSTOCK_PROBE_PORT": self.probes.rsplit(":", 1)[1],
        }
        variables = [*image.config["Env"], *(f"{key}={value}" for key, value in own.items())]
        self._log = folder / f"{self.name}.log"
        shell = ["unshare", "--mount", "sh", "-c", _RUN, "sh"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*shell, *variables, *(command or image.config["Cmd"])],
                stdout=log,
                stderr=log,
                env={
                    "PATH": os.environ["PATH"],
                    "ROOT": str(image.root),
                    "MOUNTS": " ".join(f"{folder}:{place}" for place, folder in places.items()),
                    "USER_ID": image.config["User"],
                },
            )

    def log(self) -> str:
        """Return the output so far."""
        return self._log.read_text(errors="replace")

    def wait(self, timeout_s: float = 60) -> int:
        """Wait for the end of the process; return its exit code."""
        return self._process.wait(timeout_s)

    def user(self) -> int:
        """Return the user id of the process."""
        return Path(f"/proc/{self._process.pid}").stat().st_uid

    def ready(self, path: str = "/readyz") -> None:
        """Wait until the process is ready."""
        base = self.probes if path.endswith("z") else self.url

        def answers() -> bool:
            assert self._process.poll() is None, self.log()
            try:
                return httpx.get(f"{base}{path}", timeout=2).status_code == 200
            except httpx.TransportError:
                return False

        wait_for(answers, 60, f"{self.name} to be ready")

    def stop(self) -> int:
        """Send SIGTERM; return the exit code."""
        self._process.terminate()
        return self.wait(STOP_S)

    def kill(self) -> None:
        """End the process in any case."""
        self._process.kill()
        self._process.wait()
