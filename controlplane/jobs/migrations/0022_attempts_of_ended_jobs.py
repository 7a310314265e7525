"""Attempts of jobs that are over were left as stopping where their processes ended after the job: these jobs are due,
and their next pass ends them."""

from django.db import migrations
from django.utils import timezone

TERMINAL = ("succeeded", "failed", "cancelled")


def make_due(apps, schema_editor):
    stopping = apps.get_model("jobs", "Attempt").objects.filter(state="stopping")
    jobs = apps.get_model("jobs", "Job").objects.filter(state__in=TERMINAL, pk__in=stopping.values("job_id"))
    jobs.update(due_at=timezone.now())


class Migration(migrations.Migration):
    dependencies = [("jobs", "0021_yielded_replicas")]

    operations = [migrations.RunPython(make_due, migrations.RunPython.noop)]
