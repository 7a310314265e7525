from django.apps import AppConfig


class AccessConfig(AppConfig):
    name = "controlplane.access"
    label = "access"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """The rows of projects are in a file of their own."""
        from controlplane.access import project_models  # noqa: F401
