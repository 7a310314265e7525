"""When the install of a view was ordered; null for those of before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("recovery", "0005_count_looks_and_marked_lines"),
    ]

    operations = [
        migrations.AddField(model_name="viewrow", name="ordered_at", field=models.DateTimeField(null=True)),
    ]
