"""Incidents keep where their job was when they began and ended; of those there are, times tell it."""

from django.db import migrations, models


def mark(apps, schema_editor):
    """For each incident of a job."""
    incident_model = apps.get_model("recovery", "Incident")
    steps, views = apps.get_model("jobs", "StepRecord"), apps.get_model("recovery", "ViewRow")

    def at(job_id, moment):
        step = steps.objects.filter(job_id=job_id, at__lte=moment).order_by("attempt", "step").last()
        view = views.objects.filter(job_id=job_id, announced_at__lte=moment).order_by("epoch").last()
        of_attempt = step.attempt if step else 0
        return {
            "of_attempt": of_attempt,
            "step": step.step if step else -1,
            "attempt": max(of_attempt, view.attempt if view else 1),
            "epoch": view.epoch if view else 0,
        }

    for incident in incident_model.objects.exclude(job=None).iterator():
        incident.began = at(incident.job_id, incident.opened_at)
        ended_at = incident.recovered_at or incident.resolved_at
        incident.ended = at(incident.job_id, ended_at) if ended_at else None
        incident.save(update_fields=["began", "ended"])


class Migration(migrations.Migration):
    dependencies = [("recovery", "0015_requests"), ("jobs", "0016_pace_spent")]

    operations = [
        migrations.AddField(model_name="incident", name="began", field=models.JSONField(null=True)),
        migrations.AddField(model_name="incident", name="ended", field=models.JSONField(null=True)),
        migrations.RunPython(mark, migrations.RunPython.noop),
    ]
