"""A person sets and changes a password on the page, before the real web process (O8)."""

from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, expect

from controlplane.access.services import create_one_time_password
from tests.e2e.browser import Complaints, Target, axe_violations, picture, sign_in
from tests.e2e.test_page_orders import looks_well

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
WAIT_MS = 20_000
NEW = "another horse, another battery"


@pytest.fixture
def opened(real: Target, chromium: Browser) -> Iterator[Callable[..., Page]]:
    """opened("/nodes"): a page of ana, signed in unless `anybody`. Statuses that refuse a password are no complaint."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce", timezone_id="UTC")
    context.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    complaints = Complaints(origin=real.url, allowed_statuses=(401, 422))

    def visit(path: str, *, anybody: bool = False) -> Page:
        if not anybody:
            sign_in(context, real)
        page = context.new_page()
        complaints.watch(page)
        page.goto(real.url + path)
        return page

    yield visit
    context.close()
    assert complaints.found == []


def fill(page: Page, **values: str) -> None:
    """Fields by their name in the form."""
    for name, value in values.items():
        page.locator(f"form input[name={name}]:visible").fill(value)


def signs_in(page: Page, password: str) -> None:
    """The sign-in form has the name already; the password works."""
    expect(page.get_by_label("User name")).to_have_value("ana")
    expect(page.get_by_label("Password or one-time password")).to_be_focused()
    page.keyboard.type(password)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Fleet overview")


def test_a_signed_in_person_changes_the_password_and_signs_in_with_it(
    opened: Callable[..., Page], real: Target
) -> None:
    page = opened("/nodes")
    opener = page.get_by_role("button", name="Change password")
    opener.click()
    dialog = page.get_by_role("dialog", name="Change password")
    expect(dialog.get_by_label("Present password")).to_be_focused()
    looks_well(page, "password-dialog")
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    opener.click()
    fill(page, current=real.password, password=NEW, again=NEW)
    dialog.get_by_role("button", name="Change password").click()
    expect(page).to_have_url(f"{real.url}/login")
    expect(page.get_by_role("status")).to_have_text("Your new password is saved. Sign in with it.")
    picture(page, "password-changed")
    assert axe_violations(page) == []
    signs_in(page, NEW)
    assert User.objects.get(username="ana").check_password(NEW)


def test_what_is_wrong_with_a_password_is_said_and_nothing_changes(opened: Callable[..., Page], real: Target) -> None:
    page = opened("/nodes")
    page.get_by_role("button", name="Change password").click()
    dialog = page.get_by_role("dialog", name="Change password")
    press = dialog.get_by_role("button", name="Change password")
    fill(page, current=real.password, password=NEW, again=NEW + "x")
    expect(dialog).to_contain_text("The two new passwords differ.")
    expect(press).to_be_disabled()
    fill(page, current=real.password, password="otp_" + NEW, again="otp_" + NEW)
    press.click()
    expect(dialog.get_by_role("alert")).to_contain_text("it begins with 'otp_'")
    fill(page, current="a wrong guess", password=NEW, again=NEW)
    press.click()
    expect(dialog.get_by_role("alert")).to_contain_text("The name or the password is wrong")
    picture(page, "password-refused")
    assert axe_violations(page) == []
    expect(page).to_have_url(f"{real.url}/nodes")
    assert User.objects.get(username="ana").check_password(real.password)
    dialog.get_by_role("button", name="Keep as it is").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Nodes")


def test_a_one_time_password_sets_ones_own_at_the_sign_in(opened: Callable[..., Page], real: Target) -> None:
    user = User.objects.get(username="ana")
    user.set_unusable_password()
    user.save()
    given = create_one_time_password(user)
    page = opened("/login", anybody=True)
    looks_well(page, "login")
    page.get_by_role("button", name="Set a password with a one-time password").click()
    expect(page.get_by_label("User name")).to_be_focused()
    looks_well(page, "password-one-time")
    fill(page, username="ana", current="otp_of-somebody-else", password=NEW, again=NEW)
    page.get_by_role("button", name="Set password").click()
    expect(page.get_by_role("alert")).to_contain_text("the one-time password was used")
    fill(page, current=given)
    page.get_by_role("button", name="Set password").click()
    expect(page.get_by_role("status")).to_have_text("Your new password is saved. Sign in with it.")
    signs_in(page, NEW)
    user.refresh_from_db()
    assert user.check_password(NEW)
