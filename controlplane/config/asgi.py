"""ASGI root: HTTP to Django, WebSockets to the two live edges, lifespan to the process's own threads."""

import gc

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application

from controlplane.config.env import choose_settings_module
from controlplane.config.guards import close_files

close_files()
choose_settings_module()
_django = get_asgi_application()

from django.urls import path  # noqa: E402 - the apps must be ready first

import controlplane.config.celery  # noqa: E402 - wake-ups are sent through this application
import controlplane.config.urls  # noqa: E402, F401 - the API's types, before threads use them
from controlplane.config.busy import Busy  # noqa: E402
from controlplane.live.agent_socket import AgentSocket  # noqa: E402
from controlplane.live.browser_socket import browser_socket  # noqa: E402
from controlplane.live.process import WebProcess  # noqa: E402
from controlplane.protocol import first_use  # noqa: E402

# A full collection over 12,500 sockets stops the loop for a second; see docs/settings.md.
gc.set_threshold(100_000, 50, 1000)

first_use.prepare()

application = WebProcess(
    ProtocolTypeRouter(
        {
            "http": Busy(_django),
            "websocket": URLRouter(
                [path("agent/v1/stream", AgentSocket.as_asgi()), path("api/v1/live", browser_socket())]
            ),
        }
    )
)
