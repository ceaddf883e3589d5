# docker build --tag stoix_like .                                     on CPUs
# docker build --tag stoix_like:cuda --build-arg EXTRAS=cuda12,s3 .   on GPUs, whose driver the host brings
FROM python:3.11-slim

# Extras of the package, see pyproject.toml; empty for none.
ARG EXTRAS=gcs,s3

WORKDIR /opt/stoix_like
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY configs ./configs
COPY hydra_plugins ./hydra_plugins
COPY stoix_like ./stoix_like
RUN pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS:+[$EXTRAS]}"

RUN useradd --create-home --uid 1000 stoix && mkdir /runs && chown stoix /runs
USER stoix
WORKDIR /runs
ENTRYPOINT ["stoix-like"]
CMD ["--help"]
