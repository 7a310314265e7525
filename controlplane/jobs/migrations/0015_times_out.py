"""How often a replica was left out lately, and when last: who flaps is taken back later each time."""

from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def count_once(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """What was left out once has been so one time, when is not known."""
    apps.get_model("jobs", "Replica").objects.filter(left_out=True).update(times_out=1)


def say_once(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Back: any number of times is once."""
    apps.get_model("jobs", "Replica").objects.filter(times_out__gt=0).update(left_out=True)


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0014_relieved"),
    ]

    operations = [
        migrations.AddField(
            model_name="replica",
            name="times_out",
            field=models.PositiveSmallIntegerField(default=0),
        ),
        migrations.AddField(
            model_name="replica",
            name="out_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.RunPython(count_once, say_once),
        migrations.RemoveField(
            model_name="replica",
            name="left_out",
        ),
    ]
