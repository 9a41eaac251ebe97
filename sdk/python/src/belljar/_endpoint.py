"""Where a server is: `http://host:port`, `https://host/prefix` or `unix:/path`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional
from urllib.parse import urlsplit

__all__ = ["Endpoint"]


@dataclass(frozen=True)
class Endpoint:
    """An address to connect to. `path` is a unix socket; otherwise `host` and `port`, with TLS if `tls`."""

    url: str
    host: str = "localhost"
    port: int = 0
    tls: bool = False
    path: Optional[str] = None
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> "Endpoint":
        if url.startswith("unix:"):
            path = url[len("unix:") :]
            path = path[2:] if path.startswith("///") else path  # unix:///path, as some write it
            if not path.startswith("/"):
                raise ValueError(f"the server's address {url!r} needs an absolute path: unix:/path/to.sock")
            return cls(url, path=path)
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the server's address {url!r} is not like http://host:port, https://host or unix:/path")
        if parts.username or parts.query or parts.fragment:
            raise ValueError("the server's address has a user, a query or a fragment; a key goes into api_key")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(url, parts.hostname, port, tls, None, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """For the header Host."""
        if self.path:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"
