"""The rights that docs/access.md takes from the server's database role, taken and tried."""

import pytest
from django.db import ProgrammingError, connection, transaction

from tests.house.blocks import all_blocks

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif("connection.vendor != 'postgresql'", reason="roles are PostgreSQL's"),
]
ROLE = "holdfast_in_a_document"
(BLOCK,) = [block for block in all_blocks() if block.language == "sql"]


def test_with_the_documented_rights_the_server_seals_audit_rows_and_changes_none() -> None:
    with connection.cursor() as cursor:
        # The tests' own role owns the tables; the documented one must not.
        cursor.execute(f"CREATE ROLE {ROLE}")
        cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}")
        cursor.execute(BLOCK.text.replace("holdfast;", f"{ROLE};"))
        cursor.execute(f"SET LOCAL ROLE {ROLE}")
        cursor.execute("UPDATE access_auditentry SET seq = 1, prev_hash = '', hash = ''")
        for statement in (
            "UPDATE access_auditentry SET action = 'nothing'",
            "DELETE FROM access_auditentry",
            "TRUNCATE access_auditentry",
            "DELETE FROM access_auditanchor",
            "DELETE FROM access_auditverdict",
        ):
            with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
                cursor.execute(statement)
        cursor.execute("RESET ROLE")
