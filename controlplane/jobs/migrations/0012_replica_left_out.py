"""A replica remembers that the others went on without it once."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0011_ahead"),
    ]

    operations = [
        migrations.AddField(
            model_name="replica",
            name="left_out",
            field=models.BooleanField(default=False),
        ),
    ]
