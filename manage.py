#!/usr/bin/env python
"""Django's command line: `python manage.py <command>`; `help` lists them."""

import sys

from django.core.management import execute_from_command_line

from controlplane.config.env import start_or_say_why
from controlplane.config.guards import close_files

if __name__ == "__main__":
    close_files()
    start_or_say_why()
    import controlplane.config.celery  # noqa: F401 - bells of the sentinel are sent through this application

    execute_from_command_line(sys.argv)
