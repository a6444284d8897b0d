"""The POSIX scripts that run on a node: look at a job, start it once, poll it, stop it, tidy up.

Each prints "name value" lines, which ``muster.remote.job.jobs`` and the trigger parse; none trusts what it finds there.
"""

from __future__ import annotations

from muster.remote.job import launch
from muster_node.agent import gpu_settings

BOOT_ID = 'boot=$(head -c 64 "${MUSTER_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}" 2>/dev/null || true)'
"""A simulated node's server points MUSTER_BOOT_ID_FILE at the boot id of the machine that it simulates."""

# A recycled pid must not pass for the job: the wrapper's command line names the job's folder.
ALIVE = """
alive() {
  p=$(head -c 10 "$1/pid" 2>/dev/null); case $p in ''|*[!0-9]*) return 1;; esac
  [ "$p" -gt 1 ] && kill -0 "$p" 2>/dev/null || return 1
  [ ! -r "/proc/$p/cmdline" ] || grep -qF -- "${1##*/}" "/proc/$p/cmdline"
}
"""

STATE = """
exit_code=$(head -c 4 "$j/exit_code" 2>/dev/null || true)
if [ -n "$exit_code" ]; then state=done
elif [ ! -d "$j/started" ]; then state=absent
elif alive "$j"; then state=running
else state=gone; fi
"""

JOB = "[0-9a-f]" * 24
"""What the name of each job's folder matches, as a regular expression too. Whatever else lies there is another's."""

UNUSABLE = 46
_NAMED = """
case $1 in '') w=$HOME/.muster;; '~') w=$HOME;; '~/'*) w=$HOME/${1#'~/'};; /*) w=$1;; *) w=$HOME/$1;; esac
"""
_OURS = f"""
no() {{ echo "the work folder $w$d $1" >&2; exit {UNUSABLE}; }}
[ "$(id -gn)" = "$(id -un)" ] && mine="-o -group $(id -g)" || mine=
own() {{ [ -n "$(find "$1/." -prune ! -perm -002 \\( ! -perm -020 $mine \\))" ]; }}
for d in '' /agents /jobs; do
  why=$( (umask 077; mkdir -p -- "$w$d") 2>&1) || no "cannot be made: $why"
  [ -n "$d" ] || w=$(cd -P -- "$w" 2>/dev/null && pwd -P || printf %s "$w")
  [ -O "$w$d" ] || no "belongs to another user, who could change what runs there; give it to $(id -un)"
  own "$w$d" ||
    no "may be written by other users, who could change what runs there; set another, or chmod go-w this one"
done
p=$w d=
while [ -n "$p" ]; do
  p=${{p%/*}}
  [ -n "$(find "$p/." -prune \\( -user 0 -o -user "$(id -u)" \\))" ] && {{ [ -k "$p/." ] || own "$p"; }} ||
    no "can be replaced by another user, who owns $p/ or may write there; set another, or chmod go-w that one"
done
"""
WORK = f"{_NAMED}{_OURS}"
"""The work folder of $1, as enrolled, without links: whose it is says nothing of who may change a link to it. Made
before it is asked whose it is, with what holds the agent and the jobs: what is not there yet, another user could make
in between. Exits ``UNUSABLE``, also as root, where another user made any of it first, or may write there, or may put
another in its place: all that it lies in is root's or ours, and others write there in a sticky folder alone. The
login's own group may write if it has the login's name: then it is the user's alone, as with a umask of 002.
"""

LOOK = f"""
{WORK}
j=$w/jobs/$2; a=$w/agents/$3.pyz
{BOOT_ID}
{ALIVE}{STATE}
agent=absent
if [ -f "$a" ]; then
  sum=$(sha256sum "$a" 2>/dev/null); [ "${{sum%% *}}" = "$3" ] && agent=ok || agent=bad
fi
jobboot=$(head -c 64 "$j/boot_id" 2>/dev/null) ends=
[ -z "$jobboot" ] || [ "$jobboot" = "$boot" ] || {{
  since=$(stat -c %y "$j/boot_id") since=${{since%%.*}}  # Ubuntu 25.10: date -r is now
  ends=$(last -x -n 100 -s "$since" reboot shutdown 2>/dev/null |
    sed -n 's/^reboot .*/b/p; s/^shutdown .*/s/p' | tr -d '\\n')
  seen=$(journalctl -q -r -o cat --no-pager --since "$since" _TRANSPORT=kernel + _PID=1 UNIT=shutdown.target \\
    + _SYSTEMD_UNIT=systemd-logind.service MESSAGE_ID=98268866d1d54a499c4e98921d93bc40 2>/dev/null |
    sed -nE 's/.*(critical temperature reached|HARDWARE PROTECTION).*/h/p; s/^Linux version .*/b/p
      s/^(Reached target .*Shutdown\\.|System is |The system will ).*/s/p' | tr -d '\\n' | tr -s s)
  case $ends:$seen in *h*) ends=hot;; *s*:*) ;; *) ends=$seen;; esac
}}
printf 'work %s\\nboot %s\\nagent %s\\nstate %s\\nexit %s\\njobboot %s\\nends %s\\n' \\
  "$w" "$boot" "$agent" "$state" "$exit_code" "$jobboot" "$ends"
"""
"""$1 work folder, $2 job key, $3 the agent's sha256.

``ends``: the boots (b) and orderly shutdowns (s) since the job began, the latest first, by wtmp, which every user may
read; "hot" if the kernel shut it down for heat, by the journal, which not every user may read. Debian 13 has neither
``last`` nor wtmp, and the ``last`` of its wtmpdb leaves out the shutdown of a boot before ``-s``: then by the journal,
where PID 1 reached shutdown.target or, for a /var that is unmounted earlier, logind announced the shutdown.
"""

REBOOTS_UNSEEN = """
[ -s /var/log/wtmp ] && command -v last >/dev/null ||
  [ -n "$(journalctl -q -n 1 -o cat -D /var/log/journal _PID=1 2>/dev/null)" ] || echo yes
"""
"""Says yes where ``LOOK`` takes an orderly reboot for a crash: it can read neither wtmp nor a journal on disk."""

ENDS_WITH_LOGIN = """
[ -n "$XDG_SESSION_ID" ] || exit 0
get() {
  busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager "$1" 2>/dev/null
}
[ "$(get KillUserProcesses)" = 'b true' ] || exit 0
user=\\"$(id -un)\\"
case $(get KillExcludeUsers) in *"$user"*) exit 0;; esac
case $(get KillOnlyUsers) in 'as 0'|*"$user"*) echo yes;; esac
"""
"""Says yes where systemd-logind ends what a login has started as its connection closes. Lingering (loginctl) keeps what
the user's manager runs, and a job is none of that.
"""

ENDS_WITH_USER = """
[ "$(id -u)" != 0 ] || exit 0
[ "$(loginctl show-user "$(id -un)" -p Linger 2>/dev/null)" != Linger=no ] || echo yes
"""
"""Says yes where systemd-logind ends the user's manager as the user's last login closes, and with it the containers of
podman, whose files in XDG_RUNTIME_DIR it removes.
"""

RUN = """
printf %s "$$" >"$1/pid"
trap : TERM INT HUP
export MUSTER_WORK="$2"
eval "$3" >>"$1/stdout.log" 2>&1
printf %s "$?" >"$1/exit_code.part"
mv "$1/exit_code.part" "$1/exit_code"
"""
"""The job's own shell. $1 job folder, $2 work folder, $3 the command that runs the node side.

Its pid is the job's process group (setsid). The trap keeps it alive until the node side, which gets the same signal,
has ended, so that the exit status is kept.
"""

START = """
umask 077
[ -f "$1/plan.json" ] || { echo "there is no plan in $1" >&2; exit 42; }
mkdir "$1/started" 2>/dev/null || exit 43
printf %s "$3" >"$1/boot_id"
printf %s "$5" >"$1/runtime" || { rm -f "$1/runtime"; rmdir "$1/started"; exit 42; }
: >"$1/stdout.log"
detached=nohup; command -v setsid >/dev/null 2>&1 && detached=setsid
j=$1 w=$2 command=$4 run=$6; shift 6
$detached "$@" sh -c "$run" muster-job "$j" "$w" "$command" </dev/null >/dev/null 2>&1 &
(set -C; printf %s "$!" >"$j/pid") 2>/dev/null || true
"""
"""$1 job folder, $2 work folder, $3 boot id, $4 the node side's command, $5 the runtime of its container, empty if that
does not outlive it, $6 ``RUN``, then the words of a command that runs it.

``mkdir`` is the lock: only the caller that makes the folder starts the job. Until the job's own shell has written its
pid, that of the command that runs it stands for the job: ``srun`` may wait minutes for its slurmctld, and a job that
looked dead by then was started a second time.
"""

POLL = f"""
j=$1
{BOOT_ID}
{ALIVE}{STATE}
size=$(wc -c <"$j/stdout.log" 2>/dev/null || echo 0)
printf 'boot %s\\nstate %s\\nsize %s\\n\\n' "$boot" "$state" $size
tail -c "+$(($2 + 1))" "$j/stdout.log" 2>/dev/null | head -c "$3"
exit 0
"""
"""$1 job folder, $2 log offset, $3 most bytes of log."""

STOP_SECONDS = 8
"""The node side ends within 2 s of SIGTERM; what is left after this long is killed."""

_REMOVALS = "\n".join(f"{each}) {launch.removal(each, '${1##*/}')};;" for each in launch.RUNTIMES)

# A container goes on without the process that started it, so a job that looks dead may still load the node. Which
# runtime it has is read where the job was started: its node may be launched otherwise by now.
STOP = f"""
{ALIVE}
stop() {{
  alive "$1" || return 0
  kill -TERM "-$p" 2>/dev/null || kill -TERM "$p" 2>/dev/null
  n=0; while alive "$1" && [ $n -lt {STOP_SECONDS * 5} ]; do sleep 0.2; n=$((n + 1)); done
  kill -KILL "-$p" 2>/dev/null
  return 0
}}
removed() {{
  case ${{2-$(head -c 16 "$1/runtime" 2>/dev/null)}} in
{_REMOVALS}
  esac
}}
"""

STOP_ONE = f"""
{STOP}
stop "$1"
gone() {{
  [ ! -f "$1/runtime" ] || {{ removed "$1"; return; }}
  for kind in {" ".join(launch.RUNTIMES)}; do
    ! "$kind" ps >/dev/null 2>&1 || removed "$1" "$kind" || return
  done
}}
if gone "$1" && ! alive "$1"; then echo stopped; else echo still; fi
"""
"""$1 job folder. Where it does not say which runtime the job has, as after a user deleted it, each that this login may
use is asked for the job's container.
"""

STOP_OTHERS = f"""
{WORK}
{BOOT_ID}
f=$w/fence; [ ! -d "$w/nodes/$4" ] || f=$w/nodes/$4/fence; [ -z "$5" ] || f=$5/fence
[ ! -e "$f" ] || [ "$(head -c 20 "$f")" -le "$3" ] 2>/dev/null || exit 0
{STOP}
here() {{ of=$(head -c 64 "$1/boot_id" 2>/dev/null); [ -z "$of" ] || [ -z "$boot" ] || [ "$of" = "$boot" ]; }}
for j in "$w"/jobs/{JOB}; do
  [ "${{j##*/}}" != "$2" ] && [ -d "$j" ] || continue
  ! here "$j" || {{ alive "$j" && echo "${{j##*/}}"; stop "$j"; }} 2>/dev/null
  here "$j" || {{ [ -z "$5" ] && [ ! -d "$w/nodes" ]; }} &&
    {{ removed "$j" && here "$j" && rm -f "$j/runtime"; }} 2>/dev/null
  [ -n "$(find "$j" -mtime -8 2>/dev/null | head -n 1)" ] || rm -rf -- "$j"
done
exit 0
"""
"""$1 work folder, $2 the key to spare, $3 the lease's token, $4 the node's name, $5 its fence's folder if it has one.

Only for the holder of the node's lease. Prints the keys that were running, and as errors what of folders in which
nothing has changed for a week cannot be removed. Stops nothing where the fence is higher, by which the node side then
refuses this job, nor where another machine runs it that shares the folder: it has another boot. So has a job that ended
with a reboot, whose container stays: it is removed where no machines are known to share the folder.
"""

_NODE_WIDE = " ".join(f'"$f/{name}"' for name in ("fence", "fence.lock", "running", gpu_settings.FILE))
"""What the node side keeps next to the jobs, in the folder $f."""

CLEAN = f"""
{_NAMED}
[ -d "$w" ] || exit 0
{_OURS}
{BOOT_ID}
if [ -d "$w/nodes" ] || [ -n "$3" ]; then
  f=$3; rm -rf -- "$w/nodes/$2" && {{ [ -z "$f" ] || rm -f -- {_NODE_WIDE}; }} || exit 1
  for j in "$w"/jobs/{JOB}; do
    [ -n "$3" ] && [ -n "$boot" ] && [ "$(head -c 64 "$j/boot_id" 2>/dev/null)" = "$boot" ] || continue
    rm -rf -- "$j" || exit 1
  done
  printf 'shared %s\\n' "$w"; exit
fi
rm -rf -- "$w"/jobs/{JOB} || exit 1
for a in "$w"/agents/{"[0-9a-f]" * 64}.pyz*; do [ ! -e "$a" ] || rm -f -- "$a" || exit 1; done
f=$w; rm -f -- {_NODE_WIDE} || exit 1
rmdir -- "$w/jobs" "$w/agents" "$w" 2>/dev/null
[ ! -d "$w" ] || printf 'left %s\\n' "$w"
"""
"""Delete what Muster made. $1 work folder, $2 the node's name, $3 its fence's folder if it has one.

Where machines share the work folder, or may, as those with such a fence: the node's own part alone,
and the jobs of this boot where the fence is the machine's own.
"""
