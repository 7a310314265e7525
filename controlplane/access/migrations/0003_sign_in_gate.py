from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('access', '0002_token_parent'),
    ]

    operations = [
        migrations.CreateModel(
            name='SignInGate',
            fields=[
                ('key', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('failures', models.IntegerField(default=0)),
                ('last_at', models.DateTimeField(db_index=True)),
                ('closed_until', models.DateTimeField(null=True)),
                ('known_until', models.DateTimeField(null=True)),
            ],
        ),
    ]
