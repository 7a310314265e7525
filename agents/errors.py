"""Errors of the agent.

AgentError            anything operational; `retry` says whether trying again can help
|- ConfigError        the operator's settings are wrong (never retried)
|- EnrolmentError     the server refused, or could not be asked
|- LinkRefused        the server ended the session with a reason
|- SignatureRejected  a command that the server did not give to this node
|- JournalError       the journal cannot be written (disk full, read-only)
|- LaunchError        a process could not be started
`- ProbeError         a device driver could not be asked
"""


class AgentError(Exception):
    """Base. The text says what, where and how to mend it."""

    def __init__(self, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.retry = retry


class ConfigError(AgentError):
    """Wrong or unknown settings."""


class EnrolmentError(AgentError):
    """No credential could be had."""


class LinkRefused(AgentError):
    """`code` as in `protocol.frames.Refused`; `retry_after_s` None: not soon."""

    def __init__(self, code: str, message: str, *, retry_after_s: float | None) -> None:
        super().__init__(message, retry=retry_after_s is not None)
        self.code = code
        self.retry_after_s = retry_after_s


class SignatureRejected(AgentError):
    """The command is answered with the text as failed, and never carried out."""


class JournalError(AgentError):
    """Nothing may be acted on that could not be written down."""


class LaunchError(AgentError):
    """The operating system refused a process."""


class ProbeError(AgentError):
    """No reading; the sampler reports absence instead."""
