"""A replica may be relieved while it trains; an attempt keeps how many of its replicas compute."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0013_pace_trained_s"),
    ]

    operations = [
        migrations.AddField(
            model_name="replica",
            name="relieved",
            field=models.TextField(blank=True, default=""),
        ),
        migrations.AddField(
            model_name="attempt",
            name="max_contributors",
            field=models.IntegerField(null=True),
        ),
    ]
