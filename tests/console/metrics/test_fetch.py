"""Fetching over a real socket: bounded, no redirects, and each failure in one line that names the address."""

from __future__ import annotations

import http.server
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from arc.console.exits import Exit, Failure
from arc.console.metrics import fetch as fetching
from arc.console.metrics.fetch import NoPage, address, fetch

from .pages import LOADED
from .served import Answer, Server, page, serving

Handler = http.server.BaseHTTPRequestHandler


def refused(server: Server, timeout: float = 20.0) -> str:
    with pytest.raises(NoPage) as raised:
        fetch(address(server.url), timeout)
    message = raised.value.message
    assert message.startswith(f"{server.url}: ") and message.isprintable()
    assert raised.value.exit_code == Exit.NO_ENGINE
    return message


def test_a_page_comes_as_it_is() -> None:
    with serving(page(LOADED)) as server:
        fetched = fetch(address(server.url))
    assert fetched.text == LOADED and fetched.seconds >= 0 and fetched.at <= time.monotonic()


def test_redirects_are_refused_and_not_followed() -> None:
    with serving(page(LOADED)) as target, serving(page("", 302, Location=target.url)) as server:
        assert f"redirects to {target.url}" in refused(server)
        assert target.asked == 0


def test_a_page_that_is_too_long_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MOST_BYTES", 100_000)
    with serving(page("x" * 100_001)) as server:
        assert "longer than" in refused(server)

    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        while True:
            handler.wfile.write(b"x 1\n" * 10_000)

    with serving(endless) as server:
        assert "longer than" in refused(server)


def _drip(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while True:
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


def _drip_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.05)


def _silent(handler: Handler) -> None:
    time.sleep(60)


@pytest.mark.parametrize("answer", [_drip, _drip_headers, _silent], ids=["body", "headers", "nothing"])
def test_a_server_that_drips_or_says_nothing_is_left(answer: Answer) -> None:
    with serving(answer) as server:
        assert "no whole answer within 0.5 s" in refused(server, 0.5)


def _short(handler: Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(LOADED)))
    handler.end_headers()
    handler.wfile.write(LOADED.encode()[:5000])


def _short_chunk(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\nx 1\n")


def _no_http(handler: Handler) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (_short, "the page broke off"),
        (_short_chunk, "the page broke off"),
        (_no_http, "the answer is not HTTP"),
        (lambda handler: None, "closed without a whole answer"),
        (page("no", 404), "answered 404 Not Found: SGLang has the page only with --enable-metrics"),
        (page("no", 503), "answered 503 Service Unavailable"),
        (page(LOADED, Content_Encoding="gzip"), "sent the page as gzip"),
        (page(b"\xff\xfe\x00"), "no text"),
    ],
    ids=["short", "short chunk", "ssh", "closed", "404", "503", "gzip", "binary"],
)
def test_every_failure_is_said(answer: Answer, says: str) -> None:
    with serving(answer) as server:
        assert says in refused(server)


def test_where_nothing_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(NoPage, match="nothing listens there"):
            fetch(address(f"http://127.0.0.1:{port}/metrics"))


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return key, cert


def test_tls_with_a_certificate_that_is_trusted_and_one_that_is_not(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = certificate
    with serving(page(LOADED)) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        secure = server.url.replace("http:", "https:")
        with pytest.raises(NoPage, match="certificate is not trusted"):
            fetch(address(secure))
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert fetch(address(secure)).text == LOADED
        with pytest.raises(NoPage):  # plain HTTP to a server that speaks TLS
            fetch(address(server.url))
    with serving(page(LOADED)) as server, pytest.raises(NoPage, match="no TLS there"):
        fetch(address(server.url.replace("http:", "https:")))


@pytest.mark.parametrize(
    ("text", "host", "port", "target", "secure"),
    [
        ("http://127.0.0.1:8000/metrics", "127.0.0.1", 8000, "/metrics", False),
        ("http://127.0.0.1:8000", "127.0.0.1", 8000, "/metrics", False),
        ("http://127.0.0.1:8000/", "127.0.0.1", 8000, "/metrics", False),
        ("https://gpu-7/other?x=1", "gpu-7", 443, "/other?x=1", True),
        ("http://[::1]/", "::1", 80, "/metrics", False),
    ],
)
def test_addresses(text: str, host: str, port: int, target: str, secure: bool) -> None:
    found = address(text)
    assert (found.host, found.port, found.target, found.secure) == (host, port, target, secure)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("127.0.0.1:8000", "such as http://127.0.0.1:8000"),
        ("gpu-7", "such as http://gpu-7"),
        ("ftp://gpu-7/metrics", "such as http://gpu-7/metrics"),
        ("http://gpu-7:999999/", "[Pp]ort"),
        ("http://gpu..7/", "'gpu..7' is no host's name"),
        ("http://\udcff/", "'\\?' is no host's name"),
        ("http://[::1", "IPv6"),
        ("http://me:secret@gpu-7/", "user and a password"),
        ("http://gpu-7/a b", "percent-encoding"),
        ("http://gpu-7/\r\nX: y", "percent-encoding|such as|http"),
        ("", "such as"),
    ],
)
def test_wrong_addresses_are_refused_and_no_password_is_repeated(text: str, says: str) -> None:
    with pytest.raises(Failure, match=says) as raised:
        address(text)
    assert "secret" not in raised.value.message and raised.value.message.isprintable()
