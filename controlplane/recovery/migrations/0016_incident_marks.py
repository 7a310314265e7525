"""Incidents keep where their job was when they began and ended; of those there are, times tell it (`recovery.course`)."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("recovery", "0015_requests")]

    operations = [
        migrations.AddField(model_name="incident", name="began", field=models.JSONField(null=True)),
        migrations.AddField(model_name="incident", name="ended", field=models.JSONField(null=True)),
    ]
