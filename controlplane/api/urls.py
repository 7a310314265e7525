"""Addresses of the API, the probes and the page. The root includes these."""

from django.urls import URLPattern, URLResolver, path, re_path

from controlplane.api import page, probes
from controlplane.api.app import api
from controlplane.api.openapi import serve, serve_job_schema

# The page owns every address that no one else does; an unknown one under a prefix of a
# machine is a 404 for a machine.
_CLIENT_ROUTES = r"^(?!api/|agent/|static/|healthz|readyz|metrics).*$"

urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", probes.healthz),
    path("readyz", probes.readyz),
    path("metrics", probes.metrics),
    path("api/v1/openapi.json", serve),
    path("api/v1/job.schema.json", serve_job_schema),
    path("api/v1/", api.urls),
    re_path(_CLIENT_ROUTES, page.index),
]
