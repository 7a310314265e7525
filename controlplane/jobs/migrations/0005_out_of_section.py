from django.db import migrations, models


class Migration(migrations.Migration):
    """The longest time out of all sections, of a rank that ended well."""

    dependencies = [("jobs", "0004_ordered_evictions")]

    operations = [
        migrations.AddField(model_name="rank", name="out_of_section_s", field=models.FloatField(null=True)),
    ]
