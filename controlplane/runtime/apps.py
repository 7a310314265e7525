from django.apps import AppConfig


class RuntimeConfig(AppConfig):
    name = "controlplane.runtime"
    label = "runtime"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Logs are configured once, by whichever process this is."""
        from django.conf import settings

        from controlplane.runtime.logs import configure

        configure(settings.LOG_LEVEL)
