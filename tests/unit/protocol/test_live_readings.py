"""What the API answers of a device's newest reading is that reading, field for field."""

import msgspec

from controlplane.protocol.rest import DeviceLive
from controlplane.protocol.samples import DeviceSample


def test_each_field_of_a_reading_is_answered_and_nothing_but_its_score_besides() -> None:
    assert set(DeviceLive.__struct_fields__) == {*DeviceSample.__struct_fields__, "risk", "risk_parts"}
    sample = DeviceSample(index=3, temperature_c=71.5, throttle_reasons=("hw_slowdown",), row_remap_pending=True)
    live = msgspec.convert(msgspec.to_builtins(sample), DeviceLive)
    assert msgspec.to_builtins(live) == {
        **msgspec.to_builtins(sample),
        "throttle_reasons": ["hw_slowdown"],
        "risk": None,
        "risk_parts": {},
    }
