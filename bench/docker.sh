# A Docker daemon of our own, in a folder of its own, for as long as something is measured. To be sourced, with `cache` set; then
# make_image, start_docker, and stop_docker whatever happens.

readonly docker_packages=(docker.io iptables mmdebstrap)
readonly image=python:3.11-slim
readonly cgroup=/belljar-bench-docker-$$
readonly scratch=$(mktemp -d)
dockerd_pid=

# An image that has what is measured and needs no registry.
make_image() {
  [[ -s $cache/image.tar ]] && return
  mmdebstrap --quiet --variant=minbase --include=python3-minimal,bash,nodejs bookworm "$scratch/image.tar"
  mv "$scratch/image.tar" "$cache/image.tar"
}

start_docker() {
  export DOCKER_HOST=unix://$scratch/docker.sock
  # No container gets a network, so the host's stays as it is.
  dockerd --data-root "$scratch/data" --exec-root "$scratch/exec" --host "$DOCKER_HOST" \
    --pidfile "$scratch/dockerd.pid" --cgroup-parent "$cgroup" --bridge none --iptables=false >"$scratch/dockerd.log" 2>&1 &
  dockerd_pid=$!
  for _ in {1..60}; do
    if docker version >/dev/null 2>&1; then
      docker import "$cache/image.tar" "$image" >/dev/null
      return
    fi
    kill -0 "$dockerd_pid" 2>/dev/null || break
    sleep 0.5
  done
  tail -n 20 "$scratch/dockerd.log" >&2
  echo "error: the Docker daemon did not start" >&2
  return 1
}

stop_docker() {
  if [[ -n $dockerd_pid ]]; then
    kill "$dockerd_pid" 2>/dev/null || true
    wait "$dockerd_pid" 2>/dev/null || true
    dockerd_pid=
  fi
  local hierarchy
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*; do
    rmdir "$hierarchy$cgroup" 2>/dev/null || true
  done
  # Only what the daemon left mounted in our own folder.
  local mounted
  while read -r mounted; do
    umount "$mounted" || true
  done < <(awk -v own="$scratch/" 'index($5, own) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
  rm -rf --one-file-system "$scratch"
}
