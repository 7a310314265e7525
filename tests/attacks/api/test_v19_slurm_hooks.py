"""V19, a hook of Slurm's whose token sees no private project: what runs there counts, and no name of it is shown."""

import pytest

from controlplane.engines.slurm import health
from tests.attacks.api.test_v19_projects import outsiders, secrets, world

pytestmark = pytest.mark.django_db


def test_a_node_on_which_a_private_job_runs_is_not_drained_under_it() -> None:
    found = world()
    type(found.nodes[0]).objects.filter(pk=found.nodes[0].pk).update(state="quarantined", state_reason="a finding")
    for who, caller in outsiders().items():
        answer = caller.get(f"/nodes/{found.nodes[0].name}")
        assert answer.status_code == 200, who
        node = health.parsed(answer.content, found.nodes[0].name)
        assert node is not None and not node.ranks and node.busy, who
        assert not health.unfit(node, piloted=True) and health.unfit(node), who
        assert not any(secret in answer.content.decode() for secret in secrets(found)), who
