"""Whether a request was sent by a page of another site. Asked by the sign-in, which has no
session yet whose CSRF token could prove the contrary.

Browsers say where a POST comes from (Origin, Sec-Fetch-Site) and no page can make them lie;
programs say nothing, and no page sends their requests. Together with the demand for
`application/json`, which another site's form cannot send, nobody is signed in by a stranger.
"""

from urllib.parse import urlsplit

from django.conf import settings
from django.http import HttpRequest
from django.utils.http import is_same_domain

OWN_SITE = frozenset({"same-origin", "none"})


def from_another_site(request: HttpRequest) -> bool:
    """True when a browser says that the request is not our own page's."""
    origin = request.headers.get("Origin")
    if origin is None:
        return request.headers.get("Sec-Fetch-Site", "none") not in OWN_SITE
    own = f"{'https' if request.is_secure() else 'http'}://{request.get_host()}"
    return origin != own and not any(_covers(trusted, origin) for trusted in settings.CSRF_TRUSTED_ORIGINS)


def _covers(trusted: str, origin: str) -> bool:
    """`trusted` as in HOLDFAST_ORIGINS, where `https://*.example.org` covers each host below."""
    if "*" not in trusted:
        return origin == trusted
    pattern, told = urlsplit(trusted), urlsplit(origin)
    return told.scheme == pattern.scheme and is_same_domain(told.netloc, pattern.netloc.lstrip("*"))
