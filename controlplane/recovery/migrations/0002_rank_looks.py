"""Looks at ranks get rows of their own; stacks that incidents kept as JSON move there."""

import django.db.models.deletion
from django.db import migrations, models

from controlplane.runtime.ids import new_id


def move_stacks(apps, schema_editor):
    """`rank` of the old form is "replica.incarnation/rank"."""
    incidents, looks = apps.get_model("recovery", "Incident"), apps.get_model("recovery", "RankLook")
    for incident in incidents.objects.exclude(job=None):
        for entry in incident.stacks:
            life, _, rank = str(entry["rank"]).partition("/")
            replica, _, incarnation = life.partition(".")
            looks.objects.create(
                id=new_id("look"), job_id=incident.job_id, incident=incident, command_id="", replica=int(replica),
                incarnation=int(incarnation), rank=int(rank), look="stacks", method=entry["method"],
                text=entry["text"], at=entry["at"],
            )  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("jobs", "0002_step_ledger"), ("recovery", "0001_initial")]

    operations = [
        migrations.AddField(model_name="incident", name="findings", field=models.JSONField(default=list)),
        migrations.CreateModel(
            name="RankLook",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("command_id", models.CharField(blank=True, db_index=True, max_length=32)),
                ("replica", models.IntegerField()),
                ("incarnation", models.IntegerField()),
                ("rank", models.IntegerField()),
                ("look", models.CharField(max_length=24)),
                ("method", models.CharField(max_length=80)),
                ("text", models.TextField()),
                ("at", models.DateTimeField()),
                (
                    "incident",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="looks",
                        to="recovery.incident",
                    ),
                ),
                (
                    "job",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="looks", to="jobs.job"
                    ),
                ),
            ],
        ),
        migrations.RunPython(move_stacks, migrations.RunPython.noop),
    ]
