"""A client of the plainest kind, for tests: http.client over the unix socket."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arc.console.client import connected


class Wire(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float = 20.0) -> None:
        super().__init__("arc", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = connected(self._path)
        self.sock.settimeout(self.timeout)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Status and decoded answer."""
        encoded = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        self.request(
            method, path, body=encoded, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )
        response = self.getresponse()
        raw = response.read()
        assert response.headers["Content-Type"] == "application/json", response.headers.items()
        return response.status, json.loads(raw)

    def get(self, path: str) -> Any:
        status, answer = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def stream(self, path: str, **headers: str) -> Iterator[tuple[str, int | None, Any]]:
        """(event, id, data) as they come."""
        self.request("GET", path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        response = self.getresponse()
        assert response.status == 200, response.read()
        event, number = "", None
        for raw in response:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                yield event, number, json.loads(line[6:])
                event, number = "", None
