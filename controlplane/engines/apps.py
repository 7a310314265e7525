from django.apps import AppConfig


class EnginesConfig(AppConfig):
    name = "controlplane.engines"
    label = "engines"
    default_auto_field = "django.db.models.BigAutoField"
