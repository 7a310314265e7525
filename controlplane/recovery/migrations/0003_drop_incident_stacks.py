"""The stacks of incidents are rows now (0002)."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("recovery", "0002_rank_looks")]

    operations = [migrations.RemoveField(model_name="incident", name="stacks")]
