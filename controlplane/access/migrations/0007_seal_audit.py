"""Rows that were written before there was a chain are closed into it as they stand: from now on
nobody can change them unnoticed. What happened to them before cannot be told."""

from django.db import migrations

from controlplane.access import chain

BATCH = 500


def seal_existing(apps, schema_editor):
    entries = apps.get_model("access", "AuditEntry")._base_manager
    key, head = chain.keys()[0], (0, chain.GENESIS)
    while rows := list(entries.filter(seq=None).order_by("id")[:BATCH]):
        for row in rows:
            row.mac = chain.row_mac(row, key)
        head = chain.close(rows, head, key)
        entries.bulk_update(rows, ["mac", "seq", "prev_hash", "hash"], batch_size=100)


class Migration(migrations.Migration):

    dependencies = [
        ("access", "0006_audit_chain"),
    ]

    operations = [
        migrations.RunPython(seal_existing, migrations.RunPython.noop),
    ]
