"""Hooks against the agent's end of a socket."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controlplane.protocol.launch import Resume
from tests.unit.trainer.agent import FakeAgent
from trainer.config import hook_settings
from trainer.hooks import any_rank, starting
from trainer.hooks.agreement import Agree
from trainer.hooks.run import Run


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[FakeAgent]:
    agent = FakeAgent(tmp_path)
    yield agent
    agent.close()


@pytest.fixture
def start(agent: FakeAgent) -> Iterator[Callable[..., Run]]:
    """Starts hooks as in a process of their own; SIGTERM gets its old meaning back."""
    before = signal.getsignal(signal.SIGTERM)

    def make(agree: Agree = any_rank, *, signals: bool = True, resume: Resume | None = None, **environment: Any) -> Run:
        settings = hook_settings(agent.environment(resume=resume, **environment))
        assert settings is not None
        return starting._connect(settings, agree, signals=signals)

    yield make
    signal.signal(signal.SIGTERM, before)
