"""The seconds of all committed steps are kept as they come, and no more summed at each look."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0012_replica_left_out"),
    ]

    operations = [
        migrations.AddField(
            model_name="jobpace",
            name="trained_s",
            field=models.FloatField(null=True),
        ),
    ]
