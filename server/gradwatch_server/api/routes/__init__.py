"""The routes, a file for each topic. Each is listed in `ROUTERS`, in the order of the docs.

Routes return `Json` themselves: what FastAPI makes of a returned dict has null for NaN.
"""

from gradwatch_server.api.routes import (
    alert,
    alerts,
    frames,
    heatmap,
    layers,
    rows,
    rules,
    runs,
    series,
    service,
    silences,
    streams,
)

ROUTERS = (
    service.router,
    runs.router,
    layers.router,
    series.router,
    heatmap.router,
    frames.router,
    rows.router,
    rules.router,
    alerts.router,
    silences.router,
    streams.router,
    alert.router,  # after /alerts/stream, which is no id
)
