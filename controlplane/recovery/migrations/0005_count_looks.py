"""Looks on schedule are counted on their job, no more by their decisions."""

from django.db import migrations
from django.db.models import Count, Max


def count(apps, schema_editor):
    taken = apps.get_model("recovery", "Decision").objects.filter(rule="look", applied=True)
    for row in taken.values("job_id").annotate(n=Count("pk"), newest=Max("at")):
        apps.get_model("jobs", "Job").objects.filter(pk=row["job_id"]).update(
            looks_taken=row["n"], looked_at=row["newest"]
        )


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0006_ends_refusals_looks"),
        ("recovery", "0004_restart_ledger"),
    ]

    operations = [migrations.RunPython(count, migrations.RunPython.noop)]
