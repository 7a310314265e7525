"""URL root: probes and metrics, the agents' enrolment, the REST API, then the page."""

from importlib.util import find_spec

from django.urls import URLPattern, URLResolver, path

from controlplane.live.enroll import enroll

urlpatterns: list[URLPattern | URLResolver] = [path("agent/v1/enroll", enroll)]

# The API is a package of its own and optional to the sockets and the sentinel.
if find_spec("controlplane.api") and find_spec("controlplane.api.urls"):
    from controlplane.api.urls import urlpatterns as _api

    urlpatterns += _api
