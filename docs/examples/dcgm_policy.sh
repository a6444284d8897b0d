#!/bin/sh
# DCGM reports violations of its policies to Muster: a service on each node, after for example
#   dcgmi policy --set 0,0 --eccerrors --nvlinkerrors --xiderrors --maxpages 10
# A violated limit makes the whole test due when the node is next idle; what an XID causes is said by the SKU's policy.
# Settings: /etc/muster_dcgm.conf, readable by its user alone, with
#   MUSTER=https://airflow.example.org/muster-api   TOKEN=…   NODE=name   (optional: VIOLATIONS="command that prints them")
# The token can report, and nothing else (docs/starting-tests.md); it is no login of Airflow. The lines that are matched
# are those of dcgmi's source (dcgmi/Policy.cpp); it was not run with DCGM. They do not name the GPU.
set -u
. "${MUSTER_DCGM_CONF:-/etc/muster_dcgm.conf}" || exit 1
header=$(mktemp) || exit 1 # of mode 0600: the arguments of a program are public
trap 'rm -f "$header"' EXIT
trap 'exit 1' INT TERM
printf 'Authorization: Bearer %s\nContent-Type: application/json\n' "$TOKEN" >"$header"

eval "${VIOLATIONS:-dcgmi policy --reg}" | while read -r line; do
    limit='"severity": "RESET"'
    case $line in
    "XID error "*) code=${line#XID error } check="xid/${code%% *}" limit='"severity": null' ;;
    "A double-bit ECC error has violated"*) check=event/dcgm/double_bit_ecc ;;
    "A PCIe replay event has violated"*) check=event/dcgm/pcie_replay ;;
    "The maximum number of retired pages has violated"*) check=event/dcgm/retired_pages ;;
    "The maximum thermal limit has violated"*) check=event/dcgm/thermal ;;
    "The maximum power limit has violated"*) check=event/dcgm/power ;;
    "NVLink Counter "*" has violated"*) check=event/dcgm/nvlink ;;
    *) continue ;;
    esac
    printf '{"node": "%s", "check": "%s", "value": "%s", %s}' "$NODE" "$check" "$line" "$limit" |
        curl --silent --show-error --fail --max-time 20 --retry 3 --header "@$header" --data @- \
            "$MUSTER/v1/reports" >/dev/null
done
