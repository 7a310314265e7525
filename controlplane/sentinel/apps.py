from django.apps import AppConfig


class SentinelConfig(AppConfig):
    name = "controlplane.sentinel"
    label = "sentinel"
