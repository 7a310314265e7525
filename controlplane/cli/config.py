"""Where the server is and who I am: flag > environment > config file > the demo in this
directory > default. The only reader of the environment in the CLI.

A token is never a flag, since every user of a machine can read its process list: it
comes from HOLDFAST_TOKEN, from the config file that `holdfast login` writes with mode
0600, or from the demo's token file.
"""

import os
import secrets
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.cli.exits import CliError

DEFAULT_URL = "http://127.0.0.1:8000"
DEMO_DIR = Path("var/demo")
KEYS = ("url", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """`sources` says where each value came from."""

    url: str
    token: str
    sources: Mapping[str, str]


def config_path(environ: Mapping[str, str] = os.environ) -> Path:
    """HOLDFAST_CLI_CONFIG, else the XDG place."""
    named = environ.get("HOLDFAST_CLI_CONFIG")
    if named:
        return Path(named)
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "~").expanduser() / ".config")
    return Path(base) / "holdfast" / "config.toml"


def load(url_flag: str = "", environ: Mapping[str, str] = os.environ, demo_dir: Path = DEMO_DIR) -> Config:
    """Resolve each value by itself. Raises CliError for a config file that is none."""
    path = config_path(environ)
    layers: list[tuple[str, Mapping[str, str]]] = [
        ("flag", {"url": url_flag}),
        ("environment", {"url": environ.get("HOLDFAST_URL", ""), "token": environ.get("HOLDFAST_TOKEN", "")}),
        (str(path), read_file(path)),
        (f"demo in {demo_dir}", _demo(demo_dir)),
        ("default", {"url": DEFAULT_URL, "token": ""}),
    ]
    found: dict[str, str] = {}
    sources: dict[str, str] = {}
    for key in KEYS:
        source, values = next(((name, v) for name, v in layers if v.get(key)), layers[-1])
        found[key], sources[key] = values.get(key, ""), source
    # A file's token belongs to the file's server: it is not shown to another one.
    if sources["token"] == str(path) and sources["url"] in ("flag", "environment"):
        saved = dict(layers[2][1]).get("url", DEFAULT_URL)
        if saved.rstrip("/") != found["url"].rstrip("/"):
            found["token"], sources["token"] = "", "none (the saved token is for another server)"
    return Config(url=found["url"], token=found["token"], sources=sources)


def read_file(path: Path) -> dict[str, str]:
    """The file's values; empty without a file."""
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise CliError(
            f"{path} cannot be read: {error}", fix="fix it, or remove it and run `holdfast login`"
        ) from error
    unknown = sorted(set(values) - set(KEYS))
    if unknown:
        raise CliError(f"{path}: unknown key {unknown[0]!r}", fix=f"known keys: {', '.join(KEYS)}")
    return {key: str(value) for key, value in values.items()}


def write_file(path: Path, *, url: str, token: str) -> None:
    """Replace the file; only its owner may read it. The draft is a new file under a name that nobody can have made
    before: what is there, a link or a file that others can read, gets no token."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            for key, value in (("url", url), ("token", token)):
                escaped = value.replace("\\", "\\\\").replace('"', '\\"')
                file.write(f'{key} = "{escaped}"\n')
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _demo(folder: Path) -> dict[str, str]:
    """What `holdfast up` left in this directory, if it runs from here."""
    values: dict[str, str] = {}
    for key in KEYS:
        try:
            values[key] = (folder / key).read_text().strip()
        except OSError:
            continue
    return values
