"""Flag > environment > file > demo > default, and a token goes to its own server only."""

from pathlib import Path

import pytest

from controlplane.cli.config import DEFAULT_URL, config_path, load, write_file
from controlplane.cli.exits import CliError


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOLDFAST_CLI_CONFIG": str(tmp_path / "config.toml")}


def saved(environ: dict[str, str], url: str = "http://file", token: str = "holdfast_read_file") -> None:
    write_file(Path(environ["HOLDFAST_CLI_CONFIG"]), url=url, token=token)


def test_the_default_is_the_demo_on_this_machine(environ: dict[str, str], tmp_path: Path) -> None:
    found = load(environ=environ, demo_dir=tmp_path)
    assert (found.url, found.token) == (DEFAULT_URL, "")


def test_a_demo_in_this_directory_is_found(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("holdfast_operate_demo\n")
    (tmp_path / "url").write_text("http://127.0.0.1:8123\n")
    found = load(environ=environ, demo_dir=tmp_path)
    assert (found.url, found.token) == ("http://127.0.0.1:8123", "holdfast_operate_demo")


def test_each_layer_beats_the_ones_below(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "url").write_text("http://demo")
    saved(environ)
    assert load(environ=environ, demo_dir=tmp_path).url == "http://file"
    environ["HOLDFAST_URL"] = "http://environment"
    assert load(environ=environ, demo_dir=tmp_path).url == "http://environment"
    assert load("http://flag", environ=environ, demo_dir=tmp_path).url == "http://flag"


def test_a_saved_token_is_not_shown_to_another_server(environ: dict[str, str], tmp_path: Path) -> None:
    saved(environ, url="http://mine")
    assert load("http://mine/", environ=environ, demo_dir=tmp_path).token == "holdfast_read_file"
    assert load("http://evil", environ=environ, demo_dir=tmp_path).token == ""


def test_a_damaged_or_misspelt_file_says_so(environ: dict[str, str], tmp_path: Path) -> None:
    path = Path(environ["HOLDFAST_CLI_CONFIG"])
    for text in ("url = [", 'ulr = "x"'):
        path.write_text(text)
        with pytest.raises(CliError):
            load(environ=environ, demo_dir=tmp_path)


def test_what_is_written_is_read_back_whatever_it_is(environ: dict[str, str], tmp_path: Path) -> None:
    saved(environ, token='odd "token" \\ with signs')
    assert load(environ=environ, demo_dir=tmp_path).token == 'odd "token" \\ with signs'


def test_the_file_is_where_xdg_says() -> None:
    assert config_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/holdfast/config.toml")
    assert config_path({"HOME": "/home/ada"}) == Path("/home/ada/.config/holdfast/config.toml")


def test_no_token_is_written_into_what_somebody_else_has_put_there(environ: dict[str, str], tmp_path: Path) -> None:
    """Whoever may write to the folder, and knows the name of the draft."""
    theirs = tmp_path / "theirs"
    theirs.touch(0o666)
    (tmp_path / "config.tmp").symlink_to(theirs)
    (tmp_path / "config.toml").symlink_to(theirs)
    saved(environ)
    assert theirs.read_text() == "" and (tmp_path / "config.tmp").is_symlink()
    written = tmp_path / "config.toml"
    assert not written.is_symlink() and written.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.tmp", "config.toml", "theirs"]
