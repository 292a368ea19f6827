"""The demo load: a few clients with requests of mixed lengths, so that a newcomer sees the engine at work.

It is an ordinary client of the HTTP API, in threads of its own: it takes no part of the engine that others cannot take,
and it is cut off with the console, upon which the engine cancels what it had asked.

It measures nothing, so it asks for whole answers. The generator of `arc bench` reads every token as it comes, thousands
a second: in this process that would take the interpreter from the screen.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import urllib.parse
from collections.abc import Callable

CLIENTS = 12
_PAUSE = 0.5  # seconds between two requests of a client, at most
_BUSY_PAUSE = 2.0  # after 429
_PATIENCE = 600.0  # seconds for an answer: an engine under load queues
# Words of the prompt and tokens of the answer, so far apart that rows of many lengths decode at once.
_LENGTHS = ((6, 120), (20, 600), (60, 300), (140, 800), (30, 80))
_WORST_TOKENS = 8  # tokens that a word of the prompt may take, with a tokenizer that knows no words

_OPENINGS = (
    "It was agreed between the two sisters that the letter should be read aloud after breakfast, and that nobody was "
    "to speak until the end of it.",
    "The road from the village to the sea goes over a hill, and whoever walks it in the morning has the sun before "
    "him.",
)
_REST = (
    "and when the rain had passed they went out to the garden where the old man was at work among his roses he told "
    "them of the winter and of the ships that had come in with it and how the harbour was full of strangers for a month"
)


class DemoLoad:
    """Runs from `start` until `stop`, or until the engine refuses: then `refused` is told why, from another thread."""

    def __init__(self, api: str, key: str, longest: int, refused: Callable[[str], None]) -> None:
        """`api`: the API's base. `key` may be empty. `longest`: tokens of prompt and answer that the model takes."""
        parts = urllib.parse.urlsplit(api)
        assert parts.hostname is not None and parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._key = key
        self._longest = longest
        self._refused = refused
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[int, http.client.HTTPConnection] = {}  # by client, while a request is under way
        self._threads = [
            threading.Thread(target=self._client, args=(number,), name=f"arc-demo-{number}", daemon=True)
            for number in range(CLIENTS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Does not wait. What is under way is cut off."""
        self._stopped.set()
        with self._lock:
            for connection in self._open.values():
                if connection.sock is not None:
                    with contextlib.suppress(OSError):  # the other end was quicker
                        connection.sock.shutdown(socket.SHUT_RDWR)

    @property
    def running(self) -> bool:
        return not self._stopped.is_set()

    @property
    def under_way(self) -> int:
        return len(self._open)

    def _client(self, number: int) -> None:
        chance = random.Random(number)
        self._stopped.wait(chance.random() * _PAUSE)
        while not self._stopped.is_set():
            words, tokens = chance.choice(_LENGTHS)
            try:
                status, answer = self._ask(number, self._body(chance, words, tokens))
            except (OSError, http.client.HTTPException) as error:
                if not self._stopped.is_set():
                    self._end(f"the API at {self._address[0]}:{self._address[1]} does not answer: {error}")
                return
            if status == 429:  # more wait than may: others need the engine now
                self._stopped.wait(_BUSY_PAUSE)
            elif status != 200:
                self._end(_why(status, answer))
                return
            self._stopped.wait(chance.random() * _PAUSE)

    def _body(self, chance: random.Random, words: int, tokens: int) -> bytes:
        room = self._longest // 2
        words = max(1, min(words, room // _WORST_TOKENS))
        opening, rest = chance.choice(_OPENINGS).split(), _REST.split()
        turned = chance.randrange(
            len(rest)
        )  # openings are shared, as the prefix cache likes it; what follows differs
        written = (opening + (rest[turned:] + rest[:turned]) * 4)[:words]
        body = {
            "prompt": " ".join(written),
            "max_tokens": max(1, min(tokens, room)),
            "temperature": 0.8,
            "ignore_eos": True,
        }
        return json.dumps(body).encode()

    def _ask(self, number: int, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection = http.client.HTTPConnection(*self._address, timeout=_PATIENCE)
        try:
            connection.connect()
            with self._lock:
                if self._stopped.is_set():
                    return 200, b""
                self._open[number] = connection
            connection.request("POST", "/v1/completions", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            with self._lock:
                self._open.pop(number, None)
            connection.close()

    def _end(self, why: str) -> None:
        """Once, whoever of the clients is refused first."""
        with self._lock:
            first = not self._stopped.is_set()
            self._stopped.set()
        if first:
            self.stop()
            self._refused(why)


def _why(status: int, answer: bytes) -> str:
    if status == 401:
        return "the engine needs its API key: set ARC_API_KEY for the console as for the engine"
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the API answered {status}"
