import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Which token made a token; None for all that exist."""

    dependencies = [
        ('access', '0001_initial'),
    ]

    operations = [
        migrations.AddField(
            model_name='apitoken',
            name='parent',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='children', to='access.apitoken'),
        ),
    ]
