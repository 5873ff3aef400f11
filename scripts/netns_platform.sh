#!/bin/sh
# A second interconnect on one machine: two network namespaces joined by a veth pair whose rate
# tc limits in both directions. Ranks in them talk over the limited link and know nothing of it.
#
#   scripts/netns_platform.sh up 1gbit      # namespaces stepsight0 (10.77.0.1) and stepsight1 (10.77.0.2)
#   scripts/netns_platform.sh rate 200mbit  # change the rate of a link that is up
#   scripts/netns_platform.sh down
#
# Then, for calibrate and for validate live:
#   --address 10.77.0.1 --interface sslink --rank-prefix 'ip netns exec stepsight{rank}'
set -eu

A=stepsight0 B=stepsight1 DEVICE=sslink
usage() { sed -n '2,11p' "$0" | sed 's/^# \{0,1\}//'; exit 2; }

need() {
    command -v "$1" >/dev/null 2>&1 || { echo "netns_platform: $1 is missing; install iproute2" >&2; exit 3; }
}

rights() {
    probe="stepsight-probe-$$"
    if ! ip netns add "$probe" 2>/dev/null; then
        echo "netns_platform: no right to make network namespaces; run as root or with CAP_NET_ADMIN and CAP_SYS_ADMIN" >&2
        exit 4
    fi
    ip netns del "$probe"
}

limit() {
    for space in $A $B; do
        # A burst of 10 ms at the rate, and room for 50 ms of waiting packets: a switch's small buffer.
        ip netns exec $space tc qdisc replace dev $DEVICE root tbf rate "$1" burst 256kb latency 50ms || {
            echo "netns_platform: tc cannot limit the rate (is the tbf queue in this kernel?)" >&2
            exit 5
        }
    done
}

down() {
    ip netns del $A 2>/dev/null || true
    ip netns del $B 2>/dev/null || true
}

up() {
    down
    ip netns add $A
    ip netns add $B
    ip -netns $A link add $DEVICE type veth peer name $DEVICE netns $B
    for space in $A:10.77.0.1 $B:10.77.0.2; do
        ip netns exec "${space%%:*}" ip address add "${space##*:}/24" dev $DEVICE
        ip netns exec "${space%%:*}" ip link set lo up
        ip netns exec "${space%%:*}" ip link set $DEVICE up
    done
    limit "$1"
    echo "up: $A 10.77.0.1 and $B 10.77.0.2, $1 each way"
}

need ip
need tc
case "${1:-}" in
    up) rights; up "${2:-1gbit}" ;;
    rate) [ $# -eq 2 ] || usage; limit "$2"; echo "rate: $2 each way" ;;
    down) down; echo "down" ;;
    *) usage ;;
esac
