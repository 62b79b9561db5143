"""Settings by HTTP, for the person who runs the appliance."""

from fastapi import APIRouter, Response

from appliance.api.context import Context
from appliance.api.oip_meta import json


def router(context: Context) -> APIRouter:
    """The routes."""
    routes = APIRouter(tags=["Health and state"])

    @routes.post("/api/settings/reload", summary="The settings files and the keys are read again, now")
    async def reload() -> Response:
        """They are read by themselves soon after they have changed; this returns when it is done. What is wrong in
        them changes nothing, and is told."""
        return json(await context.reload())

    return routes
