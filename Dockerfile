# hadal in a container. docs/install.md says how to use it.
#   docker build -t hadal .
#   docker run --rm -v "$PWD:/work" hadal compare
# Needs BuildKit (the default since Docker 23) for the caches below.

FROM rust:1.95-slim-bookworm AS build
# The image has this compiler; rust-toolchain.toml would have rustup fetch tools that only developers need.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /src
# Everything in one copy: .dockerignore leaves out what the binary is not made of. What makes a second build fast are
# the caches: crates that were fetched, and dependencies that were compiled.
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin hadal \
    && cp target/release/hadal /usr/local/bin/hadal \
    && hadal man /man1 \
    && hadal --version

FROM debian:bookworm-slim
# Certificates are for models and datasets from the hub.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 hadal \
    && install -d -o hadal -g hadal /work
COPY --from=build /usr/local/bin/hadal /usr/local/bin/hadal
COPY --from=build /man1 /usr/local/share/man/man1
COPY LICENSE-MIT LICENSE-APACHE THIRD-PARTY.md /usr/local/share/doc/hadal/
USER hadal
WORKDIR /work
# Runs, data and models: mount your folder here. It must be writable for user 1000, or say --user "$(id -u):$(id -g)".
VOLUME /work
# The pages of `hadal serve runs --host 0.0.0.0 --allow-remote`; inside of a container loopback reaches nobody.
EXPOSE 7117
ENTRYPOINT ["hadal"]
CMD ["--help"]
