"""Errors of the protocol package.

ProtocolError              anything wrong with what travelled
|- FrameTooLarge           more bytes than the limit of that door
|- MalformedFrame          not decodable as any known message
`- IdentityMismatch        speaks for a node or rank that it is not
"""


class ProtocolError(ValueError):
    """Base. `code` is stable and counted; the text says what, where and how to mend it."""

    code = "protocol_error"


class FrameTooLarge(ProtocolError):
    """The sender must split or shed; retrying the same bytes cannot help."""

    code = "frame_too_large"


class MalformedFrame(ProtocolError):
    """The bytes are no message of this protocol version; retrying cannot help."""

    code = "malformed_frame"


class IdentityMismatch(ProtocolError):
    """A node may speak for itself alone."""

    code = "identity_mismatch"
