# A Docker daemon of our own, in a folder of its own, for as long as something is measured. To be sourced, with `root` and `cache` set; then
# make_image, start_docker, and stop_docker whatever happens.

readonly docker_packages=(docker.io iptables mmdebstrap)
readonly image=python:3.11-slim
readonly scratch=$(mktemp -d)

# An image that has what is measured and needs no registry.
make_image() {
  [[ -s $cache/image.tar ]] && return
  mmdebstrap --quiet --variant=minbase --include=python3-minimal,bash,nodejs bookworm "$scratch/image.tar"
  mv "$scratch/image.tar" "$cache/image.tar"
}

start_docker() {
  # No container gets a network.
  DOCKER_HOST=$("$root/ci/docker/daemon" start "$scratch/daemon" --bridge none --iptables=false)
  export DOCKER_HOST
  docker import "$cache/image.tar" "$image" >/dev/null
}

stop_docker() {
  "$root/ci/docker/daemon" stop "$scratch/daemon"
  rm -rf --one-file-system "$scratch"
}
