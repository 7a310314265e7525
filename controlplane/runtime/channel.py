"""Which TLS certificates a node's proof may be bound to, and what is wrong with one that is not.

Theory of operation. TLS ends at a proxy, so the server sees no handshake of an agent's; it knows
the certificate files that the proxy shows (HOLDFAST_TLS_CERTIFICATE), and an agent signs the hash of
the certificate that it saw. A machine in the middle has another key, so another certificate, even
where that is valid for the same name. A file that is renewed is seen before the proxy has reloaded
it: what it held before stays good for `GRACE_S`. Only what this process has read counts; a restart
forgets the earlier ones, which is how one whose key was stolen is dropped at once.

Pure: time and what the files hold are arguments. `runtime.tls_files` reads them, `live.proof` asks.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from controlplane.protocol.handshake import CHANNEL_HEADER, Proof

SETTING = "HOLDFAST_TLS_CERTIFICATE"
GRACE_S = 86_400.0
"""How long a proxy may take to reload a renewed file: the two are often daily jobs of their own."""
MAX_EARLIER = 3
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one file holds, and (fingerprint, good until) of what it held before, newest first."""

    current: str
    earlier: tuple[tuple[str, float], ...] = ()


def fingerprint(pem: bytes) -> str:
    """SHA-256 of the first certificate (DER), as agents say it. Raises ValueError where there is none."""
    return x509.load_pem_x509_certificate(pem).fingerprint(SHA256()).hex()


def renewed(held: Held | None, current: str, now_s: float) -> Held:
    """The file holds `current` now. `now_s` by any clock that only goes forward."""
    if held is None:
        return Held(current=current)
    if held.current == current:
        return held
    kept = ((one, until_s) for one, until_s in held.earlier if until_s > now_s and one != current)
    return Held(current=current, earlier=((held.current, now_s + GRACE_S), *kept)[:MAX_EARLIER])


def good(files: Iterable[Held], now_s: float) -> frozenset[str]:
    """The fingerprints that a proof may have."""
    return frozenset(
        one for held in files for one in (held.current, *(was for was, until_s in held.earlier if until_s > now_s))
    )


def fault(proof: Proof, allowed: frozenset[str], *, offered: bool) -> str:
    """Why this proof (its signature is good) is not bound to a certificate of ours, for the agent's
    log; "" where it is. `offered`: whether its connection came with `CHANNEL_HEADER`.

    An agent that dialled loopback without TLS passes: it signs the name that it dialled, so the proof
    was made for something on its own machine, and nobody elsewhere can have asked for it.
    """
    if proof.tls_certificate in allowed or (not proof.tls_certificate and proof.server_host in LOOPBACK):
        return ""
    if proof.tls_certificate:
        return (
            f"the agent's TLS connection to {proof.server_host!r} showed a certificate (SHA-256"
            f" {proof.tls_certificate}) that is in no file of {SETTING}. The session is refused: somebody in between"
            " may pass the proof on. If that certificate is your own, name the file that has it there: the renewed"
            " one, or that of the proxy that ends TLS for agents"
        )
    if offered:
        return (
            f"the proof has no TLS certificate, though {SETTING} asks for one and the agent offered it. The session"
            " is refused: what is between agent and server changes their messages. Let the agent reach the proxy of"
            f" {proof.server_host!r} directly"
        )
    return (
        f"this server takes proofs only that are bound to its TLS certificate ({SETTING}), and the agent did not"
        f" offer one ({CHANNEL_HEADER}). The session is refused. Upgrade the agent if it is older than the server,"
        " let it dial wss://, and let no proxy drop that header"
    )
