"""V17: a job's secret at the rendezvous store travels with the start, and no row keeps it."""

import json

import pytest
from django.conf import settings

from controlplane.dispatch.models import Command
from controlplane.dispatch.services import enqueue
from controlplane.dispatch.statements import signed
from controlplane.fleet.models import Node
from controlplane.protocol.commands import StartRanks, WarmHost
from controlplane.protocol.store_keys import store_token
from controlplane.runtime.events import unit_of_work
from controlplane.runtime.ids import new_id
from tests.integration.agents.conftest import launch


@pytest.fixture
def node(db: None) -> Node:
    return Node.objects.create(id=new_id("node"), name="node-1")


def test_a_start_carries_the_jobs_token_beside_its_body_and_no_row_has_it(node: Node) -> None:
    with unit_of_work():
        row = enqueue(StartRanks(launch()), node_id=node.id)
    Command.objects.filter(pk=row.pk).update(kind="start_ranks")
    row.refresh_from_db()
    assert signed(row).store_token == store_token(settings.STORE_KEY, row.job_id or "")
    assert signed(row).store_token not in json.dumps(row.body)
    assert row.body["launch"]["config"]["store_token"] == ""
    assert signed(row).store_token.encode() not in signed(row).statement


def test_no_other_command_carries_it(node: Node) -> None:
    with unit_of_work():
        row = enqueue(WarmHost("job_1", 1), node_id=node.id)
    assert signed(row).store_token == ""
