"""The release, as pyproject.toml names it (a house test compares the two): true in an
installed package and in a source tree alike."""

VERSION = "0.1.0"
