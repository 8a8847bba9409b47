"""HTTP: routes, the alert stream, who may ask, Prometheus."""
