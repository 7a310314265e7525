"""Looks on schedule are counted on their job, no more by their decisions; marked lines of logs
are counted by job."""

import django.db.models.deletion
from django.db import migrations, models
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

    operations = [
        migrations.RunPython(count, migrations.RunPython.noop),
        migrations.CreateModel(
            name="MarkedLines",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("marker", models.CharField(max_length=300)),
                ("lines", models.IntegerField(default=0)),
                ("reports", models.IntegerField(default=0)),
                ("last", models.JSONField(default=dict)),
                ("told_at", models.DateTimeField(db_index=True, null=True)),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="marked_lines", to="jobs.job"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("job", "marker"), name="marker_once_per_job")],
            },
        ),
    ]
