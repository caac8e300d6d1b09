"""SIGHUP before there is a server to hear it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from querywright.serving import ServeSettings, server


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no such signal")
def test_sighup_during_loading_loads_again_once_it_serves(
    tmp_path: Path, make: Any, scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, missed = [0], []

    def load(name: str, before: Any) -> Any:
        loads[0] += 1
        os.kill(os.getpid(), signal.SIGHUP if before is None else signal.SIGINT)
        return make(scripted, mark="ab"[before is not None])

    def miss(sig: int, frame: Any) -> None:
        missed.append(sig)

    monkeypatch.setattr(server, "loader", lambda settings: load)
    kept = signal.signal(signal.SIGHUP, miss)
    end = threading.Timer(60, os.kill, (os.getpid(), signal.SIGINT))
    try:
        server.serve(ServeSettings(artifacts=(tmp_path / "a",), port=0), on_start=lambda url: end.start())
        end.cancel()
        assert (loads, missed) == ([2], [])
        assert signal.getsignal(signal.SIGHUP) is miss
    finally:
        end.cancel()
        signal.signal(signal.SIGHUP, kept)
