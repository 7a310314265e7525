from django.apps import AppConfig


class RuntimeConfig(AppConfig):
    name = "controlplane.runtime"
    label = "runtime"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Logs are configured once, by whichever process this is; `migrate` looks at the database first."""
        from django.conf import settings
        from django.core.checks import Tags, register

        from controlplane.runtime.database import check_encoding
        from controlplane.runtime.logs import configure

        configure(settings.LOG_LEVEL)
        register(check_encoding, Tags.database)
