"""Jobs that named a project when that was a mere label: each such name becomes a project in which nothing changes."""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make_projects(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Without quota, and open to everybody by his scope."""
    projects = apps.get_model("access", "Project").objects
    for name in apps.get_model("jobs", "Job").objects.order_by().values_list("project", flat=True).distinct():
        projects.get_or_create(name=name, defaults={"visibility": "open"})


class Migration(migrations.Migration):
    dependencies = [
        ("access", "0009_projects"),
        ("jobs", "0019_preempted"),
    ]

    operations = [
        migrations.RunPython(make_projects, migrations.RunPython.noop),
    ]
