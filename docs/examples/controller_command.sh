#!/bin/sh
# The commands `muster` and `airflow` of a controller, for persons, timers and services:
#   install docs/examples/controller_command.sh /usr/local/bin/muster && ln -s muster /usr/local/bin/airflow
# They run as the user of the components, in the environment of these; the caller's own MUSTER_PERSON and login replace those
# of the file. sudo's env_keep (docs/deploying.md) lets these through: the arguments of a program are public, and sudo logs them.
set -eu
if [ "$(id -un)" != airflow ]; then
    export MUSTER_PERSON="${MUSTER_PERSON:-$(id -un)}"
    exec sudo -u airflow "$0" "$@"
fi
own=$(export -p)
set -a
. /etc/muster/environment
eval "$own"
exec "/opt/muster/venv/bin/${0##*/}" "$@"
