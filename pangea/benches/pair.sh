#!/usr/bin/env bash
# Two binaries of Pangea on the same work, alternating. See -h.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/node.sh"

usage() {
    cat <<'TEXT'
Usage: pangea/benches/pair.sh [--secs S] [--repeats N] [--protocols "NAME..."] OLD NEW

Runs two binaries of Pangea on the same work, alternating, and prints the medians and the ratio of
NEW to OLD for throughput and for the CPU time of the node for each transaction:

  tpcc, ycsb-a    pangea bench with one node and its default settings, for each protocol
  point SELECT    pgbench (Debian's package postgresql-15), prepared, 16 clients, against one node

The machine must be idle. It takes 15 minutes.

  --secs S              measured seconds of each run (default 10)
  --repeats N           runs of each binary (default 5)
  --protocols "NAME..." protocols of tpcc and ycsb-a (default "minerva calvin")

Example: pangea/benches/pair.sh ../before/target/release/pangea target/release/pangea
TEXT
}

secs=10
repeats=5
protocols='minerva calvin'
binaries=()
while [ $# -gt 0 ]; do
    case $1 in
    --secs | --repeats)
        [[ ${2:-} =~ ^[1-9][0-9]{0,5}$ ]] || { echo "$1 takes a number" >&2; exit 2; }
        declare "${1#--}=$2"
        shift
        ;;
    --protocols) protocols=${2:?} && shift ;;
    -h | --help) usage; exit 0 ;;
    -*) echo "there is no option $1; -h lists them" >&2; exit 2 ;;
    *) binaries+=("$(realpath "$1")") ;;
    esac
    shift
done
[ ${#binaries[@]} = 2 ] || { usage >&2; exit 2; }
pgbench=/usr/lib/postgresql/15/bin/pgbench
for needed in "$pgbench" "${binaries[@]}"; do
    [ -x "$needed" ] || { echo "$needed is missing: see -h" >&2; exit 2; }
done

scratch=$(mktemp -d)
node=''
stop_node() {
    [ -z "$node" ] || kill "$node" 2>/dev/null || true
    wait
    node=''
}
trap 'stop_node; rm -rf "$scratch"' EXIT

# Each of the two prints "transactions a second, CPU microseconds for each".

workload() {
    local binary=$1 workload=$2 protocol=$3
    "$binary" bench --workload "$workload" --protocol "$protocol" --regions 1 --clients 64 \
        --secs "$secs" --warmup 3 --json "$scratch/json" >"$scratch/out" 2>&1 ||
        { cat "$scratch/out" >&2; return 1; }
    # The output rounds the CPU time to microseconds.
    {
        sed -n 's/.*: \([0-9]*\) transactions a second.*/rate \1/p' "$scratch/out"
        tr -d ' \n' <"$scratch/json" |
            sed -n 's/.*"cpu_us_per_txn":{[^}]*"region-1":\([0-9.]*\).*/cpu \1/p'
    } | awk '{ v[$1] = $2 } END { print v["rate"], v["cpu"] }'
}

ticks() { sed 's/.*) //' "/proc/$node/stat" | awk '{ print $12 + $13 }'; }

# Point SELECTs for so many seconds.
selects() {
    "$pgbench" -n -S -M prepared -c 16 -j 1 -T "$1" >"$scratch/out" 2>&1 ||
        { cat "$scratch/out" "$scratch/log" >&2; return 1; }
}

point_select() {
    local binary=$1 sql_port before after rate transactions
    sql_port=$(free_port)
    rm -rf "$scratch/data"
    node_config "$sql_port" >"$scratch/node.toml"
    "$binary" start --config "$scratch/node.toml" >"$scratch/log" 2>&1 &
    node=$!
    export PGHOST=127.0.0.1 PGPORT=$sql_port PGUSER=pangea PGDATABASE=postgres
    for _ in $(seq 100); do
        "$pgbench" -i -s 1 -q -n >"$scratch/out" 2>&1 && break
        sleep 0.1
    done
    selects 2
    before=$(ticks)
    selects "$secs"
    after=$(ticks)
    stop_node
    rate=$(sed -n 's/^tps = \([0-9]*\).*/\1/p' "$scratch/out")
    transactions=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$scratch/out")
    awk -v t=$((after - before)) -v hz="$(getconf CLK_TCK)" -v n="$transactions" -v r="$rate" \
        'BEGIN { printf "%d %.2f\n", r, t * 1e6 / hz / n }'
}

# middle SIDE FIELD: the median of a field of the results of one binary.
middle() { cut -d' ' -f"$2" "$scratch/$1" | median; }

pair() {
    local name=$1 run order
    shift
    : >"$scratch/0"
    : >"$scratch/1"
    for run in $(seq "$repeats"); do
        # Each goes first as often as the other.
        if [ $((run % 2)) = 1 ]; then order='0 1'; else order='1 0'; fi
        for side in $order; do
            "$1" "${binaries[$side]}" "${@:2}" >>"$scratch/$side"
        done
    done
    awk -v k="$name" -v a="$(middle 0 1)" -v b="$(middle 1 1)" \
        -v c="$(middle 0 2)" -v d="$(middle 1 2)" \
        'BEGIN { printf "%-18s %10d %10d %7.3f %10.1f %10.1f %7.3f\n", k, a, b, b / a, c, d, d / c }'
}

printf '%-18s %10s %10s %7s %10s %10s %7s\n' '' 'OLD /s' 'NEW /s' ratio 'OLD us' 'NEW us' ratio
for protocol in $protocols; do
    for name in tpcc ycsb-a; do
        pair "$name, $protocol" workload "$name" "$protocol"
    done
done
pair 'point SELECT' point_select
