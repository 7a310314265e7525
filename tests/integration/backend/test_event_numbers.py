"""Events have numbers without a gap, whatever the database can say of an update."""

import pytest
from django.db import connection

from controlplane.runtime import events
from controlplane.runtime.models import Event


@pytest.mark.django_db(transaction=True)
def test_events_are_numbered_alike_where_an_update_returns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with SQLite before 3.35."""
    before = events.newest_seq()
    for returns in (True, False, True, False):
        monkeypatch.setattr(connection.features, "can_return_columns_from_insert", returns)
        with events.unit_of_work():
            for sentence in ("one", "another"):
                events.publish("node.state", sentence, node_id="node_1", entity="node", entity_id="node_1")
    assert events.newest_seq() == before + 8
    numbers = list(Event.objects.order_by("-seq").values_list("seq", flat=True)[:8])
    assert numbers == list(range(before + 8, before, -1))
