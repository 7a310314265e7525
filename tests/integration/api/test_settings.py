"""What an installation runs with: each value with its unit and its source, no secret, to administrators."""

from typing import Any

import pytest
from pydantic import SecretStr

from controlplane.config.env import Env

pytestmark = pytest.mark.django_db
SECRET = "kPq7-a-key-that-nobody-may-read"


def test_each_value_has_its_unit_and_its_source_and_no_secret_is_shown(caller: Any, settings: Any) -> None:
    known = {"secret_key": SECRET, "redis_url": f"redis://:{SECRET}@cache.example:6380/2", "retention_days": 7.0}
    settings.ENV = Env().model_copy(update={name: SecretStr(text) if isinstance(text, str) else text
                                            for name, text in known.items()})  # fmt: skip
    settings.ENV.model_fields_set.update(known)
    settings.SECRET_KEY = SECRET
    answer = caller("admin").get("/settings")
    assert SECRET not in answer.content.decode()
    rows = {row["name"]: (row["value"], row["unit"], row["source"]) for row in answer.json()["items"]}
    assert {f"HOLDFAST_{name.upper()}" for name in Env.model_fields} <= set(rows)
    assert rows["HOLDFAST_SECRET_KEY"] == ("(set, hidden)", "", "environment: HOLDFAST_SECRET_KEY")
    assert rows["HOLDFAST_REDIS_URL"][0] == "redis://cache.example:6380/2"
    assert rows["HOLDFAST_RETENTION_DAYS"] == ("7.0", "days", "environment: HOLDFAST_RETENTION_DAYS")
    assert rows["HOLDFAST_LEDGER_RETENTION_DAYS"] == ("400.0", "days", "default")
    assert rows["HOLDFAST_SIGNING_KEY_FILE"][2] == "computed"
    assert rows["A session ends after"] == (str(settings.SESSION_COOKIE_AGE), "s", "built in")
