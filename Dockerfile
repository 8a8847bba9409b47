# The aggregator alone, with what notifies: no torch in this image.
#   docker build -t gradwatch .
FROM python:3.11-slim AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY client client
COPY server server
COPY shared shared
COPY vendored vendored

# uPlot draws the page's lines. The lock only limits versions here: the extras say what is installed, torch is not.
RUN python vendored/vendor.py \
    && python -m venv --without-pip /opt/gradwatch \
    && pip --python /opt/gradwatch/bin/python install --no-cache-dir --constraint requirements.lock ".[server,notify]"

FROM python:3.11-slim

ENV PATH=/opt/gradwatch/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

COPY --from=build /opt/gradwatch /opt/gradwatch
RUN groupadd --gid 10001 gradwatch \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home gradwatch \
    && install --directory --owner gradwatch --group gradwatch --mode 0700 /data

# By number: Kubernetes can tell only then that it is not root.
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8420 5555

# An empty ProxyHandler: a proxy set in the environment must not answer for the aggregator.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8420/healthz', timeout=4)"]

# Listens on the container's own loopback unless told otherwise; docker-compose.yml shows how.
ENTRYPOINT ["gradwatch", "serve"]
CMD ["--data", "/data"]
