from django.apps import AppConfig

from controlplane.runtime import beside


class RecoveryConfig(AppConfig):
    name = "controlplane.recovery"
    label = "recovery"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Jobs and nodes tell what is not heard, wherever their summaries are shown."""
        from controlplane.recovery import unheard

        beside.tell("job", "not_heard", unheard.of_jobs)
        beside.tell("node", "not_heard", unheard.of_nodes)
