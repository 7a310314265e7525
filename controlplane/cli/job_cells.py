"""Cells of the table of jobs that need more than one field."""

from math import floor

from controlplane.cli.output import ABSENT, Row, seconds


def steps(row: Row) -> str:
    """Committed, of all."""
    return f"{row['committed_step']}/{row['total_steps']}"


def done(row: Row) -> str:
    """All of it only once all steps are committed."""
    done = row["progress"]
    return f"{floor(1000 * done) / 10:.1f}%" if done < 1.0 else f"{100 * done:.1f}%"


def replicas(row: Row) -> str:
    """Of those placed, as long as there are any; and how many were asked for, where that is another number."""
    shown, asked = f"{row['replicas_active']}/{row['replicas_total']}", row.get("replicas_asked")
    shown = str(row["replicas_total"]) if row.get("finished_at") else shown
    return shown if not asked or asked == row["replicas_total"] else f"{shown} of {asked}"


def checkpoint_age(row: Row) -> str:
    """Of a job without one the time that it has trained without."""
    shown = seconds("checkpoint_age_s")(row)
    return shown if row["last_checkpoint_step"] is not None or shown == ABSENT else f"none ({shown})"
