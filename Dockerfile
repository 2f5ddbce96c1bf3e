# Spillway in a container: docker build -t spillway . && docker run -p 127.0.0.1:8484:8484 -e SPILLWAY_ALLOW=open spillway
# The base image by its digest, of all platforms: a tag can be moved. `make pin` looks it up anew.
ARG PYTHON=python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b
FROM ${PYTHON} AS build
# The same sources make the same image, byte for byte (`make image`): no file carries the time of its build.
ARG SOURCE_DATE_EPOCH=0
WORKDIR /src
RUN python -m venv /opt/spillway
# The packages it was tested with, each checked against its digest; `make lock` writes the list anew.
COPY config/requirements.lock config/build.lock ./config/
RUN /opt/spillway/bin/pip install --no-cache-dir --no-compile --require-hashes -r config/requirements.lock \
    && python -m pip install --no-cache-dir --require-hashes -r config/build.lock
COPY pyproject.toml README.md LICENSE THIRD_PARTY.md ./
COPY proxy ./proxy
RUN python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheel . \
    && /opt/spillway/bin/pip install --no-cache-dir --no-compile --no-deps /wheel/*.whl
# What is compiled names the digest of its source instead of the time; nothing has to be compiled at the start.
RUN /opt/spillway/bin/python -m compileall -q -f -j 0 --invalidation-mode unchecked-hash /opt/spillway/lib

FROM ${PYTHON}
ARG SOURCE_DATE_EPOCH=0
COPY --from=build /opt/spillway /opt/spillway
RUN useradd --system --uid 10001 --no-create-home spillway && install --directory --owner 10001 --mode 0700 /data
# Checkpoints live on the volume. All addresses, because a port is published to the container's own address; the start
# is refused there unless SPILLWAY_API_KEYS is set, or SPILLWAY_ALLOW=open where the port is published to nobody else.
ENV PATH="/opt/spillway/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    SPILLWAY_HOST=0.0.0.0 \
    SPILLWAY_STORE=sqlite:////data/spillway.sqlite3
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8484
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('SPILLWAY_PORT', '8484')), timeout=4); c.request('GET', '/healthz'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["spillway"]
CMD ["serve"]
