"""Projects, their members, and tokens that are good in one project alone."""

import django.core.validators
import django.db.models.deletion
from django.conf import settings
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def make_default(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Where jobs are that name no project: no quota, and in it everybody may do what his scope says, as before."""
    apps.get_model("access", "Project").objects.get_or_create(name="default", defaults={"visibility": "open"})


class Migration(migrations.Migration):

    dependencies = [
        ('access', '0008_name_patterns'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.AddField(
            model_name='apitoken',
            name='project',
            field=models.CharField(blank=True, db_default='', default='', max_length=63),
        ),
        migrations.CreateModel(
            name='Project',
            fields=[
                ('name', models.CharField(max_length=63, primary_key=True, serialize=False, validators=[django.core.validators.RegexValidator('^[a-z]([a-z0-9-]{0,61}[a-z0-9])?\\Z', "use 1 to 63 of a-z, 0-9 and '-', starting with a letter and not ending with '-'")])),
                ('description', models.CharField(blank=True, default='', max_length=200)),
                ('quota_gpus', models.PositiveIntegerField(null=True)),
                ('borrow_limit_gpus', models.PositiveIntegerField(null=True)),
                ('lend_limit_gpus', models.PositiveIntegerField(null=True)),
                ('weight', models.PositiveIntegerField(default=1)),
                ('max_priority', models.PositiveIntegerField(default=1000)),
                ('visibility', models.CharField(choices=[('private', 'members alone'), ('visible', 'every signed-in account reads it'), ('open', 'every account may do in it what its scope says')], default='private', max_length=16)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.CharField(blank=True, default='', max_length=120)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('weight__gte', 1)), name='project_weight_positive'), models.CheckConstraint(condition=models.Q(('max_priority__lte', 1000)), name='project_max_priority')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('viewer', 'Viewer'), ('submitter', 'Submitter'), ('operator', 'Operator'), ('admin', 'Admin')], max_length=16)),
                ('since', models.DateTimeField(auto_now_add=True)),
                ('account', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='access.project')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('project', 'account'), name='membership_once')],
            },
        ),
        migrations.RunPython(make_default, migrations.RunPython.noop),
    ]
