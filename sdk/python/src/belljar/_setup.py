"""What both clients do with their settings."""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Optional

from ._background import BackgroundServer
from ._endpoint import Endpoint
from ._transport import FixedServer, Place
from ._version import __version__

__all__ = ["BUSY_SECONDS", "headers_for", "place_for"]

BUSY_SECONDS = 60.0
"""How long a call goes on trying while the server is busy, in all."""


def place_for(url: Optional[str], binary: Optional[str]) -> Callable[[], Place]:
    """Where the server is: `url`, else BELLJAR_URL, else the background server, which is looked for when it is needed."""
    named = url or (None if binary else os.environ.get("BELLJAR_URL"))
    if named:
        fixed = FixedServer(Endpoint.parse(named))
        return lambda: fixed
    found: List[Place] = []

    def find() -> Place:
        if not found:
            found.append(BackgroundServer.of(binary))
        return found[0]

    return find


def headers_for(api_key: Optional[str]) -> Dict[str, str]:
    headers = {"User-Agent": f"belljar-python/{__version__}"}
    key = api_key or os.environ.get("BELLJAR_API_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return headers
