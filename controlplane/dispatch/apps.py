from django.apps import AppConfig


class DispatchConfig(AppConfig):
    name = "controlplane.dispatch"
    label = "dispatch"
    default_auto_field = "django.db.models.BigAutoField"
