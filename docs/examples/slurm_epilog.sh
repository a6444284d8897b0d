#!/bin/sh
# Slurm reports jobs that crashed to Muster: EpilogSlurmctld=/etc/slurm/muster_epilog.sh in slurm.conf (runs as SlurmUser).
# A job that ended by a signal that faulty hardware can cause (SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV) is reported with its
# nodes, and each of them takes the whole test when it is idle. The same file on the nodes, as Epilog, reports the GPU
# driver's errors since the last job; Muster's health sweep reads those by itself every ten minutes, so that is needed only
# to know sooner.
# Settings: /etc/slurm/muster_epilog.conf, readable by its user alone, which may extend PATH where scontrol or curl
# are installed elsewhere, with
#   MUSTER=https://airflow.example.org/muster-api   TOKEN=…   (optional: XIDS="command that prints them, as dmesg or
#   journalctl does")
# The token can report, and nothing else (docs/starting-tests.md); it is no login of Airflow.
# It never delays or fails a job: it ends at once, and reports in the background, with deadlines.
set -u
PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
. "${MUSTER_EPILOG_CONF:-/etc/slurm/muster_epilog.conf}" || exit 0
# Kernel messages that no earlier epilog has read. In this format a line break in a message is indented, so that what a
# user wrote in one (the kernel repeats options of mounts) begins no line.
: "${XIDS:=journalctl --dmesg --quiet --output short-monotonic --no-hostname --cursor-file=/var/lib/muster-epilog.cursor --grep 'NVRM: Xid'}"

failed() { # why
    logger -t muster_epilog "no report of job $SLURM_JOB_ID: $1"
}

send() { # one report, JSON
    folder=$(mktemp -d) || { failed "mktemp ended with $?"; return; }
    # In a file of mode 0600, since the arguments of a program are public.
    (umask 077 && printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$TOKEN" >"$folder/header")
    printf '%s' "$1" | curl --silent --show-error --fail --max-time 20 --retry 3 --header "@$folder/header" \
        --data @- "$MUSTER/v1/reports" >/dev/null || failed "curl ended with $?"
    rm -rf "$folder"
}

report_crash() {
    # A batch script's status is 128 + signal; Slurm's own is status and signal in one word, as wait(2) gives it.
    signal=$((SLURM_JOB_EXIT_CODE & 127))
    status=$((SLURM_JOB_EXIT_CODE >> 8))
    [ "$signal" -eq 0 ] && [ "$status" -gt 128 ] && signal=$((status - 128))
    case $signal in 4 | 6 | 7 | 8 | 11) ;; *) return ;; esac
    nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/.*/"&"/' | paste -sd, -)
    [ -n "$nodes" ] || { failed "scontrol names no nodes"; return; }
    send "{\"check\": \"job_crash\", \"nodes\": [$nodes],
        \"value\": \"job $SLURM_JOB_ID of $SLURM_JOB_USER ended by signal $signal\"}"
}

report_xids() {
    # Each message once, in their order, since what some codes need is said by their text; without what JSON would escape.
    eval "$XIDS" | LC_ALL=C sed -n -e 's/["\\]//g' -e 's/[^ -~]/ /g' \
        -e 's/^\([A-Z][a-z][a-z] [ 0-9][0-9] [0-9:.]* \)\{0,1\}\(\[[A-Za-z0-9 :.]*\] \)\{0,1\}\(\([^ :]* \)\{0,1\}kernel: \)\{0,1\}NVRM: Xid/NVRM: Xid/' \
        -e 's/^NVRM: Xid ([^)]*): *\([0-9][0-9]*\),* *\(.\{0,300\}\).*/\1 \2/p' | LC_ALL=C awk '!seen[$0]++ && ++sent <= 50' |
        while read -r code text; do
            send "{\"check\": \"xid/$code\", \"node\": \"$SLURMD_NODENAME\",
                \"value\": \"${text:+$text }(after job $SLURM_JOB_ID of $SLURM_JOB_USER)\"}"
        done
}

if [ -n "${SLURMD_NODENAME:-}" ]; then work=report_xids; else work=report_crash; fi
# In a session of its own, since Slurm ends what its epilog leaves behind.
if [ "${1:-}" = wait ]; then $work; else setsid "$0" wait </dev/null >/dev/null 2>&1 & fi
exit 0
