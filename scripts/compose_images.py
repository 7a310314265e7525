"""Images with the names that docker-compose.yml and deploy/Dockerfile build on, made of Debian's packages.

For a machine that reaches a Debian mirror and no registry (`python -m scripts.compose_drill --stand-ins`). They take
what compose gives the real ones (environment, command, user, volumes), and no more: Debian's Python 3.11, PostgreSQL,
Redis and nginx in the place of the versions that the tags name.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
PACKAGES = ("ca-certificates", "nginx-light", "postgresql", "python3", "python3-pip", "redis-server")
PARTS = "holdfast-stand-in/parts:1"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

POSTGRES = """#!/bin/sh
set -e
bin=$(echo /usr/lib/postgresql/*/bin)
chown postgres /var/lib/postgresql/data; mkdir -p /run/postgresql; chown postgres /run/postgresql
as() { setpriv --reuid=postgres --regid=postgres --clear-groups "$@"; }
if [ ! -s /var/lib/postgresql/data/PG_VERSION ]; then
  printf '%s' "$POSTGRES_PASSWORD" > /run/pw; chown postgres /run/pw
  as "$bin/initdb" --pgdata=/var/lib/postgresql/data --username="$POSTGRES_USER" --pwfile=/run/pw \\
    --auth=scram-sha-256 --encoding=UTF8
  rm /run/pw
  echo 'host all all all scram-sha-256' >> /var/lib/postgresql/data/pg_hba.conf
  echo 'local all all trust' > /run/hba; cat /var/lib/postgresql/data/pg_hba.conf >> /run/hba
  cat /run/hba > /var/lib/postgresql/data/pg_hba.conf
  as "$bin/pg_ctl" -D /var/lib/postgresql/data -w -o "-c listen_addresses=''" start
  as "$bin/createdb" -U "$POSTGRES_USER" "$POSTGRES_DB"
  as "$bin/pg_ctl" -D /var/lib/postgresql/data -w stop
fi
exec setpriv --reuid=postgres --regid=postgres --clear-groups "$bin/postgres" -D /var/lib/postgresql/data \\
  -c listen_addresses='*'
"""
REDIS = """#!/bin/sh
set -e
chown redis /data; cd /data
exec setpriv --reuid=redis --regid=redis --clear-groups "$@" --protected-mode no
"""
NGINX = """pid /tmp/nginx.pid;
error_log /dev/stderr;
events {}
http {
  client_body_temp_path /tmp/body; proxy_temp_path /tmp/proxy; fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi; scgi_temp_path /tmp/scgi;
  access_log /dev/stdout;
  include /etc/nginx/conf.d/*.conf;
}
"""
PYTHON_FILE = """RUN ln -sf python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
COPY certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY wheels /wheels
ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt PIP_FIND_LINKS=/wheels PIP_DEFAULT_TIMEOUT=180
"""
POSTGRES_FILE = """COPY postgres.sh /
RUN mkdir -p /var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["sh", "/postgres.sh"]
"""
REDIS_FILE = """COPY redis.sh /
VOLUME /data
ENTRYPOINT ["sh", "/redis.sh"]
"""
NGINX_FILE = """COPY nginx.conf /etc/nginx/nginx.conf
RUN mkdir -p /etc/nginx/conf.d && chmod 1777 /var/lib/nginx
ENTRYPOINT ["nginx", "-g", "daemon off;"]
"""
FILES: Mapping[str, str] = {
    "python": PYTHON_FILE, "postgres": POSTGRES_FILE, "redis": REDIS_FILE, "nginxinc/nginx-unprivileged": NGINX_FILE,
}  # fmt: skip
"""By the name of the image before its tag."""


def stand_ins(names: set[str], work: Path, *, wheels: Path | None) -> None:
    """Make each image of `names` (with its tag) that the engine lacks. `wheels`: packages that no index has; `work`:
    a folder for what is built. Raises KeyError for a name that has none, CalledProcessError where a part fails."""
    missing = sorted(name for name in names if not _has(name))
    if not missing:
        return
    if not _has(PARTS):
        _parts(work / "rootfs")
    context = work / "context"
    (context / "wheels").mkdir(parents=True, exist_ok=True)
    for wheel in wheels.glob("*.whl") if wheels else ():
        shutil.copy(wheel, context / "wheels")
    shutil.copy(CERTIFICATES, context / "certificates.crt")
    (context / "postgres.sh").write_text(POSTGRES)
    (context / "redis.sh").write_text(REDIS)
    (context / "nginx.conf").write_text(NGINX)
    for name in missing:
        file = context / "Dockerfile"
        file.write_text(f"FROM {PARTS}\n{FILES[name.partition(':')[0]]}")
        print(f"making a stand-in for {name}", flush=True)
        plain = os.environ | {"DOCKER_BUILDKIT": "0"}
        subprocess.run(["docker", "build", "--quiet", "--tag", name, str(context)], check=True, env=plain)


def _has(name: str) -> bool:
    found = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False)
    return found.returncode == 0


def _parts(rootfs: Path) -> None:
    print("a Debian system for the stand-ins (minutes)", flush=True)
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", "bookworm", str(rootfs), MIRROR],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    with subprocess.Popen(["tar", "--create", "--directory", str(rootfs), "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(["docker", "import", "-", PARTS], stdin=packed.stdout, check=True)
