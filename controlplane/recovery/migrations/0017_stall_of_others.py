"""Seconds of a stall that belong to one incident are named beside another that was open then (`recovery.stall`)."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('recovery', '0016_incident_marks'),
    ]

    operations = [
        migrations.AddField(
            model_name='incident',
            name='stall_others_s',
            field=models.FloatField(null=True),
        ),
    ]
