"""A simulated engine with its control server and flight recorder in a process of its own, to be killed.

python -m tests.engine.control.process NAME REQUESTS
"""

from __future__ import annotations

import signal
import sys

from arc.engine.control import paths
from arc.engine.control.listening import Listening
from arc.engine.control.recorder import Recorder
from arc.engine.control.server import ControlServer

from .simulated import SimulatedEngine


def main(name: str, requests: int) -> None:
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    listening = Listening(name)
    engine = SimulatedEngine(name)
    recorder = Recorder(
        paths.private_folder(paths.state_folder()) / f"{name}.rec", engine.info, engine.settings.values()
    )
    engine.record(recorder)
    server = ControlServer(engine, listening, str(recorder.path))
    engine.start()
    server.start()
    for _ in range(requests):
        engine.submit(1_000_000)
    print("up", flush=True)
    signal.sigwait(ends)
    server.stop()
    engine.stop()
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
