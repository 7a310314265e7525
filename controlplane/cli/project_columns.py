"""Which columns projects and their members show."""

from collections.abc import Callable

from controlplane.cli.output import Column, Row, age, text


def _limit(field: str) -> Callable[[Row], str]:
    """A number of GPUs that bounds something, or that nothing does."""
    return lambda row: "none" if row[field] is None else str(row[field])


PROJECTS = (
    Column(title="NAME", show=text("name")),
    Column(title="QUOTA", show=_limit("quota_gpus")),
    Column(title="IN-USE", show=text("in_use_gpus")),
    Column(title="BORROWED", show=text("borrowed_gpus")),
    Column(title="WAITING", show=text("waiting_gpus")),
    Column(title="JOBS", show=text("live_jobs")),
    Column(title="MAX-PRIORITY", show=text("max_priority")),
    Column(title="VISIBILITY", show=text("visibility")),
    Column(title="YOU", show=text("scope")),
    Column(title="MAY-BORROW", show=_limit("borrow_limit_gpus"), wide=True),
    Column(title="MAY-LEND", show=_limit("lend_limit_gpus"), wide=True),
    Column(title="WEIGHT", show=text("weight"), wide=True),
    Column(title="WAITING-JOBS", show=text("waiting_jobs"), wide=True),
    Column(title="DESCRIPTION", show=text("description"), wide=True),
)
MEMBERS = (
    Column(title="ACCOUNT", show=text("account")),
    Column(title="ROLE", show=text("role")),
    Column(title="SINCE", show=age("since")),
)
