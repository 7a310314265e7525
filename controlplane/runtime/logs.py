"""JSON logs: a constant event phrase, data in fields. Secrets are masked."""

import json
import logging
import sys
from typing import Any

import structlog

from controlplane.protocol.plain import without_secrets


def configure(level: str = "INFO") -> None:
    """Route structlog and the standard library through one JSON renderer on stderr."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(serializer=_to_json),
        ],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Libraries' INFO is chatter; ours is state changes.
    for noisy in ("websockets", "uvicorn.access", "celery", "kombu", "asyncio", "django.request", "stamina"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _to_json(record: Any, **options: Any) -> str:
    """ASCII on one line: nothing that a node or a caller put into a field steers a terminal, and no
    credential of ours stands in it."""
    return without_secrets(json.dumps(record, **options).replace("\x7f", "\\u007f"))


def get(name: str) -> structlog.stdlib.BoundLogger:
    """A logger with fields."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger
