"""Notify of scheduled runs by webhook: runs that fail, that are late, and other decisions.

Prefect's server calls the webhook. Prefect encrypts its address, which holds a secret.
"""

import contextlib
import urllib.parse
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events import CallWebhook, EventTrigger, Posture, ResourceSpecification
from prefect.exceptions import ObjectNotFound

from flows.announce import DECISION_CHANGED, study_resource, study_slug
from lineage.errors import InputError

BLOCK_TYPE = "webhook"  # Prefect's name of the type
FAILED_EVENTS = ("prefect.flow-run.Failed", "prefect.flow-run.Crashed")
LATE_EVENTS = ("prefect.flow-run.Late",)
FAILED_TEXT = "flow_run.name ~ ': the run is ' ~ flow_run.state.name ~ '; see `lineage status`'"
LATE_TEXT = "flow_run.name ~ ': the run is late; is `lineage up` running there?'"
CHANGED_TEXT = "event.resource.name ~ ': the decision has changed. ' ~ event.payload.text"


def check_webhook(address: str) -> None:
    """Raise InputError unless this is an address of a webhook. It is not repeated: it is secret."""
    try:
        parts = urllib.parse.urlsplit(address)
    except ValueError:
        parts = urllib.parse.urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(
            "--notify: not the address of a webhook; give one such as https://hooks.example.org/..."
        )


def set_notifications(study: Path, deployment_id: UUID, address: str) -> None:
    """Call the webhook when a scheduled run fails or is late, and when the decision changes.

    It gets a POST with `{"text": ...}`. Earlier notifications of the study are replaced.
    """
    remove_notifications(study)
    block = Webhook(
        method="POST",
        url=address,  # type: ignore[arg-type]  # pydantic makes it a secret
        headers={"Content-Type": "application/json"},  # type: ignore[arg-type]
    )
    block_id = block.save(_block_name(study), overwrite=True)
    assert isinstance(block_id, UUID), "save is synchronous outside of a coroutine"
    for name, trigger, text in (
        ("failed", _run_trigger(deployment_id, FAILED_EVENTS), FAILED_TEXT),
        ("late", _run_trigger(deployment_id, LATE_EVENTS), LATE_TEXT),
        ("decision changed", _decision_trigger(study), CHANGED_TEXT),
    ):
        message = f'{{"text": {{{{ ({text}) | tojson }}}}}}'
        call = CallWebhook(block_document_id=block_id, payload=message)
        Automation(name=_automation_name(study, name), trigger=trigger, actions=[call]).create()


def remove_notifications(study: Path) -> None:
    """Remove what `set_notifications` made, if it is there."""
    with get_client(sync_client=True) as client:
        for name in ("failed", "late", "decision changed"):
            for automation in client.read_automations_by_name(_automation_name(study, name)):
                client.delete_automation(automation.id)
        with contextlib.suppress(ObjectNotFound):
            block = client.read_block_document_by_name(_block_name(study), BLOCK_TYPE)
            assert block.id is not None
            client.delete_block_document(block.id)


def _automation_name(study: Path, name: str) -> str:
    return f"{study_slug(study)}: {name}"


def _block_name(study: Path) -> str:
    return f"{study_slug(study)}-webhook"


def _run_trigger(deployment_id: UUID, events: tuple[str, ...]) -> EventTrigger:
    """Return the trigger of events of the scheduled runs of this study."""
    return EventTrigger(
        expect=set(events),
        match=ResourceSpecification({"prefect.resource.id": ["prefect.flow-run.*"]}),
        match_related=ResourceSpecification(
            {
                "prefect.resource.id": [f"prefect.deployment.{deployment_id}"],
                "prefect.resource.role": ["deployment"],
            }
        ),
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )


def _decision_trigger(study: Path) -> EventTrigger:
    return EventTrigger(
        expect={DECISION_CHANGED},
        match=ResourceSpecification({"prefect.resource.id": [study_resource(study)]}),
        posture=Posture.Reactive,
        threshold=1,
        within=timedelta(0),
    )
