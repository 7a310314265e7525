"""Incidents have an outcome, and may be of the fleet alone; decisions too. What ended before this
is judged by its job's end, and counts as acknowledged: nobody is asked about the past."""

import django.db.models.deletion
from django.db import migrations, models
from django.db.models import F

from controlplane.protocol.states import IncidentOutcome, IncidentState

ENDS = {"failed": "lost", "cancelled": "withdrawn"}


def judge(apps, schema_editor):
    rows = apps.get_model("recovery", "Incident").objects.filter(state="resolved")
    rows.update(outcome="recovered", recovered_at=F("resolved_at"), full_strength=True)
    for state, outcome in ENDS.items():
        ended = rows.filter(job__state=state, resolved_at__gte=F("job__finished_at"))
        for row in ended.values("pk", "resolved_at"):
            rows.filter(pk=row["pk"]).update(
                outcome=outcome, recovered_at=None, full_strength=False, certificate=None,
                acknowledged_at=row["resolved_at"], acknowledged_by="upgrade",
            )  # fmt: skip


class Migration(migrations.Migration):
    dependencies = [("recovery", "0009_signal_kind_seen")]

    operations = [
        migrations.RemoveConstraint("incident", "one_live_incident_per_job"),
        migrations.RenameField("incident", "outcome", "resolution"),
        migrations.AddField("incident", "acknowledged_at", models.DateTimeField(null=True)),
        migrations.AddField("incident", "acknowledged_by", models.CharField(blank=True, max_length=200)),
        migrations.AddField("incident", "acknowledgement", models.TextField(blank=True)),
        migrations.AddField("incident", "full_strength", models.BooleanField(default=False)),
        migrations.AddField("incident", "needs_hardware", models.BooleanField(default=False)),
        migrations.AddField("incident", "recovered_at", models.DateTimeField(null=True)),
        migrations.AddField(
            "incident",
            "outcome",
            models.CharField(blank=True, choices=[(s, s) for s in IncidentOutcome], max_length=12),
        ),
        migrations.AlterField(
            "incident",
            "state",
            models.CharField(choices=[(s, s) for s in IncidentState], default=IncidentState.OPEN, max_length=16),
        ),
        migrations.AlterField(
            "decision",
            "job",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, related_name="decisions", to="jobs.job"
            ),
        ),
        migrations.AddConstraint(
            "decision",
            models.UniqueConstraint(condition=models.Q(job=None), fields=("key",), name="fleet_decision_once"),
        ),
        migrations.RunPython(judge, migrations.RunPython.noop),
    ]
