"""Notices in a provider's instance metadata: `--notices ec2` and `--notices gce`.

The formats are those of the public documentation:

- EC2, a Spot Instance's interruption notice: `spot/instance-action` is 404 until there is one, then
  `{"action": "terminate", "time": "2017-09-18T08:22:00Z"}`; read with a session token (IMDSv2).
  https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
- Compute Engine: `instance/preempted` becomes TRUE, 30 s before a Spot VM is stopped; `instance/maintenance-event`
  becomes TERMINATE_ON_HOST_MAINTENANCE, an hour before one with GPUs is (60 s before others).
  https://cloud.google.com/compute/docs/instances/spot
  https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance

Answers are bounded, no redirect is followed, no proxy of the environment is asked.
"""

import http.client
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from agents.notices.base import MAX_BYTES, Notice, NoticeError, moment

TIMEOUT_S = 1.0
EC2_URL, GCE_URL = "http://169.254.169.254", "http://metadata.google.internal"
EC2_ACTIONS = ("terminate", "stop", "hibernate")
EC2_TOKEN_S = 21_600
GCE_PREEMPTED_S, GCE_MAINTENANCE_S = 30.0, 3600.0
_GOOGLE = {"Metadata-Flavor": "Google"}


def fetch(base: str, path: str, headers: Mapping[str, str], *, method: str = "GET") -> str | None:
    """The text of an answer; None: 404. Raises NoticeError."""
    place = urlsplit(base)
    connection = http.client.HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        data = answer.read(MAX_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoticeError(f"{base}{path} does not answer: {type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status == 404:
        return None
    if answer.status != 200 or len(data) > MAX_BYTES:
        raise NoticeError(f"{base}{path} answers {answer.status} with {len(data)} bytes")
    try:
        return data.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise NoticeError(f"{base}{path} is no UTF-8") from error


class Ec2Notices:
    """Of a Spot Instance."""

    def __init__(self, base: str = EC2_URL) -> None:
        self._base, self._token, self._token_until_s = base, "", 0.0

    def read(self, now_unix_s: float) -> Notice | None:
        """See the module. Raises NoticeError."""
        if now_unix_s >= self._token_until_s:
            wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(EC2_TOKEN_S)}
            token = fetch(self._base, "/latest/api/token", wanted, method="PUT")
            if not token or not token.isascii() or not token.isprintable():
                raise NoticeError(f"{self._base} gives no session token")
            self._token, self._token_until_s = token, now_unix_s + EC2_TOKEN_S / 2
        headers = {"X-aws-ec2-metadata-token": self._token}
        try:
            text = fetch(self._base, "/latest/meta-data/spot/instance-action", headers)
        except NoticeError:
            self._token_until_s = 0.0  # The token may be what is refused.
            raise
        if text is None:
            return None
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise NoticeError("spot/instance-action is no JSON") from error
        if not isinstance(said, dict) or said.get("action") not in EC2_ACTIONS:
            raise NoticeError(f"spot/instance-action names none of {', '.join(EC2_ACTIONS)}")
        return Notice(at_unix_s=moment(said.get("time")), reason=f"EC2 spot/instance-action: {said['action']}")


class GceNotices:
    """Of a Spot VM, and of host maintenance. Neither says when: counted from when it was first read."""

    def __init__(self, base: str = GCE_URL) -> None:
        self._base = base
        self._first_s: dict[str, float] = {}

    def read(self, now_unix_s: float) -> Notice | None:
        """See the module. Raises NoticeError."""
        known = {
            "preempted": (("FALSE", "TRUE"), GCE_PREEMPTED_S),
            "maintenance-event": (
                ("NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"),
                GCE_MAINTENANCE_S,
            ),
        }
        found = []
        for name, (words, in_s) in known.items():
            text = fetch(self._base, f"/computeMetadata/v1/instance/{name}", _GOOGLE)
            if text is not None and text not in words:
                raise NoticeError(f"instance/{name} is none of {', '.join(words)}")
            if text == words[-1]:
                first_s = self._first_s.setdefault(name, now_unix_s)
                found.append(Notice(at_unix_s=first_s + in_s, reason=f"Compute Engine instance/{name}: {text}"))
            else:
                self._first_s.pop(name, None)
        return min(found, key=lambda notice: notice.at_unix_s, default=None)
