"""Where the stacks of a rank say it stood, and the looks that kept a text found quickly: a whole job is asked."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('jobs', '0010_replica_ended'),
        ('recovery', '0010_incident_outcomes'),
    ]

    operations = [
        migrations.AddField(
            model_name='ranklook',
            name='place',
            field=models.CharField(blank=True, default='', max_length=200),
        ),
        migrations.AddIndex(
            model_name='ranklook',
            index=models.Index(condition=models.Q(('text', ''), _negated=True), fields=['job', 'at'], name='looks_with_text'),
        ),
    ]
