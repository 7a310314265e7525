"""Spares held for a job."""

from django.db import models

from controlplane.fleet.models import Device
from controlplane.jobs.models import Job


class SpareReservation(models.Model):
    """`device` is kept free for `job` (S0.1: placed and warm, outside the group)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="spares")
    device = models.OneToOneField(Device, on_delete=models.CASCADE, related_name="reservation")
    created_at = models.DateTimeField(auto_now_add=True)
