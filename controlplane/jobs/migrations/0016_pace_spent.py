"""Where a job's wall time went is counted beside its pace. None of a job that was counted before that was kept."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0015_times_out"),
    ]

    operations = [
        migrations.AddField(
            model_name="jobpace",
            name="spent",
            field=models.JSONField(null=True),
        ),
    ]
