#!/usr/bin/env bash
# The one list of services that the tests need; `make test`, `make test-slow`, .ci/run and pytest itself ask it.
#   services.sh names           all of them, one a line
#   services.sh missing         those that are not installed, one a line
#   services.sh how NAME        the command that installs it
#   services.sh install [slow]  as root on Debian, installs what is missing and starts none of it; elsewhere says what is
#                               missing. Succeeds either way. `slow` also builds Kubernetes' servers (seven minutes).
#   services.sh require         fails if anything is missing, and says what to do
set -euo pipefail
here=${BASH_SOURCE[0]%/*}
PATH=$PATH:/usr/local/sbin:/usr/sbin
kubernetes=${MUSTER_TEST_KUBERNETES:-${HOME:-/root}/.cache/muster-tests/kubernetes}

SERVICES=(openssh-server postgresql redis-server slurm-wlm prometheus chromium podman sudo iproute2 faketime kube-apiserver)
# Without these the tests do not start at all.
TOOLS=(make git python3)

has() { command -v "$1" >/dev/null; }

is_installed() {
    case $1 in
        openssh-server) has sshd ;;
        # Debian keeps initdb out of PATH, in a folder for each version.
        postgresql) has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null ;;
        slurm-wlm) has slurmctld && has slurmd && has munged ;;
        prometheus) has promtool ;;
        iproute2) has ip && has tc ;;
        kube-apiserver) has etcd && [ -x "$kubernetes/kube-apiserver" ] && [ -x "$kubernetes/kube-scheduler" ] ;;
        python3) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
        *) has "$1" ;;
    esac
}

# The Debian packages that bring it.
packages_of() {
    case $1 in
        slurm-wlm) echo slurm-wlm munge ;;
        podman) echo podman runc ;;
        python3) echo python3 python3-venv ;;
        kube-apiserver) ;;
        *) echo "$1" ;;
    esac
}

how() {
    case $1 in
        kube-apiserver) echo "tests/support/servers/kubernetes_server.sh $kubernetes" ;;
        *) echo "apt-get install $(packages_of "$1")" ;;
    esac
}

missing() {
    local name
    for name in "$@"; do is_installed "$name" || echo "$name"; done
}

# Runlevel 1 keeps packages from starting their servers.
get() {
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

install() {
    local name wanted=()
    for name in $(missing "${TOOLS[@]}" "${SERVICES[@]}"); do
        # shellcheck disable=SC2207  # names of packages hold no spaces
        wanted+=($(packages_of "$name"))
    done
    if [ "$(id -u)" != 0 ] || ! has apt-get; then
        [ ${#wanted[@]} = 0 ] || echo "Not installed: ${wanted[*]} (Debian's packages; as root on Debian they are installed)"
        return
    fi
    if [ ${#wanted[@]} -gt 0 ]; then
        echo "Installing for the tests: ${wanted[*]}"
        apt-get update -qq || true
        # One that cannot be installed here must not cost the others.
        get "${wanted[@]}" || for name in "${wanted[@]}"; do
            get "$name" || echo "apt-get could not install $name" >&2
        done
    fi
    if [ "${1-}" = slow ] && ! is_installed kube-apiserver; then
        echo "Building Kubernetes' servers into $kubernetes (seven minutes, once)"
        "$here/servers/kubernetes_server.sh" "$kubernetes" || echo "Kubernetes' servers could not be built" >&2
    fi
}

require() {
    local name lines=()
    for name in $(missing "${TOOLS[@]}" "${SERVICES[@]}"); do lines+=("  $name: $(how "$name")"); done
    [ ${#lines[@]} = 0 ] && return
    printf '%s\n' "Missing, and no test is left out here. Run this as root on Debian, or:" "${lines[@]}" >&2
    return 1
}

case ${1-} in
    names) printf '%s\n' "${SERVICES[@]}" ;;
    missing) missing "${SERVICES[@]}" ;;
    how) how "$2" ;;
    install) install "${2-}" ;;
    require) require ;;
    *)
        sed -n '3,8s/^# *//p' "${BASH_SOURCE[0]}" >&2
        exit 2
        ;;
esac
