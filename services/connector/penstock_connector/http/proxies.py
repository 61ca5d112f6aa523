"""Finds the proxies that the environment names, in the form of httpx's `mounts`. Pure.

httpx itself reads these variables only for a client that has httpx's own transport.
"""

from __future__ import annotations

import ipaddress
from urllib.request import getproxies


def environment_proxies() -> dict[str, str | None]:
    """Map each pattern of URLs to its proxy; None for a pattern that uses no proxy.

    The variables are `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, in upper or lower
    case. Each variable has the same meaning as in httpx.
    """
    given = getproxies()
    excepted = [host for each in given.get("no", "").split(",") if (host := each.strip())]
    if "*" in excepted:
        return {}
    proxies: dict[str, str | None] = {
        f"{scheme}://": url if "://" in url else f"http://{url}"
        for scheme in ("http", "https", "all")
        if (url := given.get(scheme))
    }
    return proxies | dict.fromkeys(map(_pattern, excepted))


def _pattern(host: str) -> str:
    if "://" in host:
        return host
    try:
        version = ipaddress.ip_address(host.partition("/")[0]).version
    except ValueError:
        return f"all://{host}" if host.lower() == "localhost" else f"all://*{host}"
    return f"all://[{host}]" if version == 6 else f"all://{host}"
