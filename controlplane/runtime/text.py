"""Untrusted text made fit for a column, a log line and a terminal."""


def printable(text: str) -> str:
    """One line without control characters or lone surrogates; those become blanks and "?"."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(letter if letter.isprintable() else " " for letter in whole)
