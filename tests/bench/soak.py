"""`make soak`: many requests of random lengths against a real `arc serve`, and what its memory does meanwhile.

Some clients read to the end, some go away in the middle. Prints resident memory at each tenth and the slope of the
second half, which must be flat: a leak of a few KiB a request ends every engine after days. Exits 1 above it.

Two engines: a tiny one for many requests, and the carried model on the torch backend, whose buffers are large enough
for the allocator's pool, under a cap that binds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import aiohttp

from .server import Server, serve

MOST_MIB_PER_1000_TOKENS = 1.0
POOLED = ("kernels.backend=torch", "alloc.cap_mib=8")


def resident_mib(server: Server) -> float:
    status = Path(f"/proc/{server.engine.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


async def one(session: aiohttp.ClientSession, server: Server, rng: random.Random, longest: int) -> int:
    """One request; the tokens that it asked for, or 0 when its client went away."""
    prompt = [rng.randrange(16, 500) for _ in range(rng.randint(1, longest))]
    output = rng.randint(1, 200)
    body = {"prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": True}
    leaves_after = rng.randint(1, 50) if rng.random() < 0.2 else None
    async with session.post(f"{server.engine.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        lines = 0
        async for line in response.content:
            lines += line.startswith(b"data: ")
            if lines == leaves_after:
                return 0
    return output


async def soak(server: Server, tokens: int, at_once: int, seed: int, longest: int) -> list[tuple[int, float]]:
    """(tokens so far, resident MiB) from begin to end, about a hundred of them; prompts up to `longest` tokens."""
    rng = random.Random(seed)
    samples = [(0, resident_mib(server))]
    done = 0

    async def client(session: aiohttp.ClientSession) -> None:
        nonlocal done
        while done < tokens:
            asked = await one(session, server, rng, longest)
            done += asked  # not in one line: the sum would be of what was done before the wait
            if done >= samples[-1][0] + tokens // 100:
                samples.append((done, resident_mib(server)))

    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(at_once)))
    return samples


def slope(samples: list[tuple[int, float]]) -> float:
    """Least squares, MiB per 1,000 tokens."""
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    above = sum((x - mean_x) * (y - mean_y) for x, y in samples)
    return 1000 * above / sum((x - mean_x) ** 2 for x, _ in samples)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=__doc__)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--pooled-tokens", type=int, default=100_000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "tests.peers.make_checkpoint", folder, "--tiny"], check=True)
        with serve(Path(folder)) as server:
            flat = report(
                "many requests", asyncio.run(soak(server, options.tokens, options.at_once, options.seed, 200))
            )
    with serve(None, *POOLED) as server:
        samples = asyncio.run(soak(server, options.pooled_tokens, 2 * options.at_once, options.seed, 700))
        pooled = report("through the allocator's pool", samples) & pool_report(server)
    sys.exit(not (flat and pooled))


def report(what: str, samples: list[tuple[int, float]]) -> bool:
    """Print it; whether it is flat."""
    print(what)
    for tenth in range(11):
        tokens, mib = samples[min(tenth * len(samples) // 10, len(samples) - 1)]
        print(f"  {tokens:9,} tokens   {mib:8.1f} MiB resident")
    found = slope(samples[len(samples) // 2 :])
    print(
        f"  second half: {found:+.3f} MiB per 1,000 tokens (at most {MOST_MIB_PER_1000_TOKENS})", flush=True
    )
    return found <= MOST_MIB_PER_1000_TOKENS


def pool_report(server: Server) -> bool:
    """Print what the allocator counted; whether it took buffers and kept to its cap."""
    with urllib.request.urlopen(f"{server.engine.url}/metrics", timeout=10) as page:
        text = page.read().decode()
    values = dict(re.findall(r"^arc:allocator_(\w+?)(?:_total)?\{[^}]*\} (\S+)$", text, re.MULTILINE))
    hits, misses, evictions, held, cap = (
        float(values[name]) for name in ("hits", "misses", "evictions", "held_bytes", "cap_bytes")
    )
    print(
        f"  {hits + misses:,.0f} buffers taken, {misses:,.0f} from the system, {evictions:,.0f} evicted; "
        f"held {held / 2**20:.1f} of {cap / 2**20:.0f} MiB",
        flush=True,
    )
    return hits > 0 and held <= cap


if __name__ == "__main__":
    main()
