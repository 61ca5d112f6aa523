"""nginx with nchan and one worker: it takes events by POST, keeps them in memory, and sends SSE."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.peers.served import NotHere, Served
from bench.publisher import Plan
from support.drive.waiting import wait_for
from support.real import servers
from support.real.ports import free_port

MODULE = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
_CONFIGURATION = """
load_module {module};
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
worker_rlimit_nofile 40000;
events {{ worker_connections 30000; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  client_body_in_single_buffer on;
  nchan_shared_memory_size 512m;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location ~ ^/pub/(.+)$ {{
      nchan_publisher;
      nchan_channel_id $1;
      nchan_message_buffer_length 2000;
      nchan_message_timeout 10m;
    }}
    location ~ ^/sub/(.+)$ {{
      nchan_subscriber eventsource;
      nchan_channel_id $1;
      nchan_subscriber_first_message newest;
    }}
    location ~ ^/replay/(.+)$ {{
      nchan_subscriber eventsource;
      nchan_channel_id $1;
      nchan_subscriber_first_message oldest;
    }}
  }}
}}
"""


@asynccontextmanager
async def edge(folder: Path) -> AsyncIterator[Served]:
    """Run nginx. Raises NotHere if nginx or its module is missing."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None or not MODULE.exists():
        raise NotHere("apt-get install nginx-light libnginx-mod-nchan")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(_CONFIGURATION.format(module=MODULE, folder=folder, port=port))
    process = servers.start(
        "nchan",
        [nginx, "-c", configuration, "-e", folder / "error.log"],
        log=folder / "nginx.log",
        owner_pid=os.getpid(),
    )

    def pids() -> list[int]:
        if process.popen.poll() is not None:
            raise RuntimeError(f"nginx ended:\n{servers.tail(process.log)}")
        master = folder / "nginx.pid"
        if not master.exists() or not (text := master.read_text().strip()):
            return []
        children = Path(f"/proc/{text}/task/{text}/children").read_text().split()
        return [int(text), *map(int, children)] if children else []

    try:
        found = wait_for(pids, 20, "nginx's worker")
        yield Served(
            url=f"http://127.0.0.1:{port}",
            pids=found,
            path=lambda run_id, _: f"/sub/{run_id}",
            replay_path=lambda run_id, _: f"/replay/{run_id}",
            plan=Plan("nchan", f"127.0.0.1:{port}", 0, 0.0),
        )
    finally:
        process.stop()
