"""A real API server with etcd and nothing else: it checks and stores objects, and runs no pods."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx

from helm.charts import Object
from support.real.ports import free_port

TOKEN = "of-the-test"
START_S = 90.0
_PLURALS = {
    "NetworkPolicy": "networkpolicies",
    "Ingress": "ingresses",
    "PriorityClass": "priorityclasses",
}


class ApiServer:
    """The processes, and requests to them."""

    def __init__(self, programs: Path, folder: Path) -> None:
        """Start etcd and the API server; return when the latter is ready."""
        self.kubeconfig = folder / "kubeconfig"
        etcd, peers, port = (free_port() for _ in range(3))
        client, peer = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
        key = folder / "accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
        (folder / "tokens.csv").write_text(f"{TOKEN},admin,1,system:masters\n")
        self._log = (folder / "log").open("wb")
        self._processes = [
            self._run(
                *(programs / "etcd", "--data-dir", folder / "etcd", "--unsafe-no-fsync"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            ),
            self._run(
                *(programs / "kube-apiserver", "--etcd-servers", client),
                *("--bind-address", "127.0.0.1", "--secure-port", port),
                *(
                    "--cert-dir",
                    folder / "certificates",
                    "--token-auth-file",
                    folder / "tokens.csv",
                ),
                *("--service-account-issuer", "https://kubernetes.default.svc"),
                *("--service-account-key-file", key, "--service-account-signing-key-file", key),
                *("--service-cluster-ip-range", "10.0.0.0/24"),
                *("--disable-admission-plugins", "ServiceAccount"),
                *("--authorization-mode", "RBAC"),
            ),
        ]
        self.url = f"https://127.0.0.1:{port}"
        self.http = httpx.Client(
            base_url=self.url,
            verify=False,
            headers={"authorization": f"Bearer {TOKEN}"},
            timeout=30,
        )
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _run(self, *command: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([str(each) for each in command], stdout=self._log, stderr=self._log)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                if self.http.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            ended = [each.args for each in self._processes if each.poll() is not None]
            assert not ended, f"{ended} ended: see {self._log.name}"
            assert time.monotonic() < deadline, f"it is not ready: see {self._log.name}"
            time.sleep(0.2)

    def stop(self) -> None:
        """End both processes."""
        self.http.close()
        for process in reversed(self._processes):
            process.kill()
            process.wait()
        self._log.close()

    def get(self, path: str) -> Any:
        """Return what is at a path."""
        answer = self.http.get(path)
        answer.raise_for_status()
        return answer.json()

    def make(self, each: Object, namespace: str = "", *, dry: bool = False) -> httpx.Response:
        """Create an object; with `dry`, only check it as a creation would."""
        group = each["apiVersion"]
        base = f"/apis/{group}" if "/" in group else f"/api/{group}"
        place = f"/namespaces/{namespace}" if namespace else ""
        plural = _PLURALS.get(each["kind"], f"{each['kind'].lower()}s")
        # An unknown field is an error, not a warning.
        asked = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry else {})}
        return self.http.post(f"{base}{place}/{plural}", json=each, params=asked)
