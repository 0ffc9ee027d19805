# Triton with the op library and the tokenizer, for a model repository mounted at /models.
#
#   docker build -f docker/serve.Dockerfile -t sparse-serve .
#   sparse-serve serve model_repository --mode docker
#
# which, with --dry-run, shows the docker run line for a machine without sparse-serve.
#
# For entries that compute on a GPU, with the op library for NVIDIA GPUs too; the entry point loads the one that
# a repository needs:
#
#   docker build -f docker/serve.Dockerfile --build-arg CUDA=1 -t sparse-serve .
#
# The stock image carries every backend of Triton. For one of a fraction of its size, compose an image that
# has only the two that are used, with compose.py of triton-inference-server/server (branch r26.07), and
# build on it:
#
#   python3 compose.py --backend onnxruntime --backend python --output-name triton-onnxruntime
#   docker build -f docker/serve.Dockerfile --build-arg TRITON_IMAGE=triton-onnxruntime -t sparse-serve .
#
# A tag may be another image tomorrow. A digest never is: for a build that can be repeated, ask for those of both
# images, and give them instead; docs/security.md says more.
#
#   docker buildx imagetools inspect --format '{{.Manifest.Digest}}' nvcr.io/nvidia/tritonserver:26.07-py3
#   docker build -f docker/serve.Dockerfile --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver@sha256:DIGEST \
#     --build-arg BUILD_IMAGE=python@sha256:DIGEST -t sparse-serve .

ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.07-py3
ARG BUILD_IMAGE=python:3.12-slim-bookworm

FROM ${BUILD_IMAGE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY ops ops
COPY export export
COPY serve serve
# The extra `cuda` is nvcc and what it needs.
ARG CUDA=0
RUN if [ "$CUDA" = 1 ]; then \
        extra="import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['cuda'])"; \
        python -c "$extra" | xargs pip install --no-cache-dir \
        && set -- --config-settings=cmake.define.SPARSE_OPS_CUDA=ON \
            --config-settings=cmake.define.SPARSE_OPS_NVCC="$(find / -name nvcc -path '*/bin/*' -print -quit)"; \
    fi \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels "$@" . \
    && python -m zipfile -e /wheels/sparse_serve-*.whl /wheel \
    && cd /wheel/sparse_serve/lib \
    && rm libtriton_onnxruntime.so \
    && sha256sum libsparse_ops.so > libsparse_ops.so.sha256 \
    && if [ "$CUDA" = 1 ]; then \
        mkdir cuda && mv libsparse_ops_cuda.so cuda/libsparse_ops.so && cd cuda \
        && sha256sum libsparse_ops.so > libsparse_ops.so.sha256; \
    fi
# Of the package, what its text backend needs; `installation.TEXT_BACKEND_MODULES` is the list.
RUN backend=/backend/sparse_serve_text \
    && mkdir -p $backend/sparse_serve/repository \
    && cd /wheel/sparse_serve \
    && cp triton/text_backend/model.py $backend/ \
    && cp -r __init__.py errors.py records.py rows.py runs.py tags.py tasks text_backend $backend/sparse_serve/ \
    && cp repository/__init__.py repository/measures.py repository/tunable.py $backend/sparse_serve/repository/
# And what the entry point's check of the repository and the health check need.
RUN mkdir /check && cd /wheel && cp --parents --target-directory=/check \
    sparse_serve/__init__.py \
    sparse_serve/digests.py \
    sparse_serve/processor.py \
    sparse_serve/repository/__init__.py \
    sparse_serve/repository/contents.py \
    sparse_serve/repository/health.py \
    sparse_serve/repository/tunable.py

FROM ${TRITON_IMAGE}
# What it stands on, as it was named at the build; asked for again, as an ARG before the first FROM is for FROMs only.
ARG TRITON_IMAGE
LABEL org.opencontainers.image.base.name="${TRITON_IMAGE}"
# Into the system's Python, as Triton's Python backend reads no PYTHONPATH. The dependencies of tokenizers
# only fetch from a hub, which serving never does.
RUN --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir --no-deps --constraint /constraints.txt tokenizers

# Repositories name the library without a folder; Triton finds it here, the entry point its digest beside it.
COPY --from=build /wheel/sparse_serve/lib/ /opt/sparse-serve/lib/
ENV LD_LIBRARY_PATH=/opt/sparse-serve/lib:${LD_LIBRARY_PATH}
COPY --from=build /backend/ /opt/tritonserver/backends/
# An unfit base fails here, not when it is served from.
RUN cd /opt/tritonserver/backends/sparse_serve_text \
    && python3 -c "import ctypes, sparse_serve.tasks; ctypes.CDLL('libsparse_ops.so')"

COPY --from=build /check/ /opt/sparse-serve/
COPY --chmod=755 docker/entrypoint.sh docker/check_entries.py docker/healthcheck.py /opt/sparse-serve/
# `serve --mode docker` compares it with the entries before it starts a container.
LABEL sparse-serve.op-library-version="1"
ENV MODEL_REPOSITORY=/models ORT_DISABLE_TELEMETRY=1
VOLUME /models
USER 1000:1000
EXPOSE 8000 8001 8002
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
    CMD ["python3", "/opt/sparse-serve/healthcheck.py"]
ENTRYPOINT ["/opt/sparse-serve/entrypoint.sh"]
