# The search page and its API on a processor:
#   docker build -t forerank .
#   docker run -p 8000:8000 -v ./photos.index:/data/index -v ./photos:/data/images:ro \
#     -e FORERANK_TOKEN="$(python3 -c 'import secrets; print(secrets.token_urlsafe())')" forerank
# The index (forerank index ... -o photos.index) brings its own copy of the model.

FROM python:3.11-slim AS build
WORKDIR /source
# Arguments of pip, for example an index that has torch for processors only.
ARG PIP_FLAGS=""
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
RUN python -m venv /opt/forerank
# torch is named alone and first, so that pip takes the pinned build for processors and nothing newer.
RUN /opt/forerank/bin/pip install --no-cache-dir ${PIP_FLAGS} --constraint constraints.txt torch
RUN /opt/forerank/bin/pip install --no-cache-dir ${PIP_FLAGS} --constraint constraints.txt "$(ls /wheels/*.whl)[web,openvino]"

FROM python:3.11-slim
COPY --from=build /opt/forerank /opt/forerank
RUN useradd --create-home --uid 10001 forerank && mkdir /data && chown forerank /data
ENV PATH=/opt/forerank/bin:$PATH PYTHONUNBUFFERED=1
USER forerank
WORKDIR /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=8)"]
ENTRYPOINT ["forerank", "serve"]
CMD ["/data/index", "--images", "/data/images", "--host", "0.0.0.0", "--log-format", "json"]
