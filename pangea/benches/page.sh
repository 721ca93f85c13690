#!/usr/bin/env bash
# The results of docs/BENCHMARKS.md, one after the other. See -h.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
    cat <<'TEXT'
Usage: sudo pangea/benches/page.sh [--out DIR] [--part NAME]... [-h]

Measures the results of docs/BENCHMARKS.md, except for the papers' figures, with
target/release/pangea. Prints a line for each run; its whole output is in DIR. Needs root, an idle
machine, and the packages of the baselines (docs/BASELINES.md). The parts:

  distance      Galera, PostgreSQL and etcd next to Minerva and Calvin in a lab
  postgres      pangea/benches/postgres.sh
  protocols     Minerva and Calvin over distance, saturated and lightly loaded
  loads         single loads: copies, partitions, one node, tail latency
  faults        a region's server is killed
  predictions   predicted and real throughput

  --out DIR     directory for the outputs (default page-out); a run that has its output there is not
                repeated
  --part NAME   run only this part; can be repeated

First: cargo build --release, or PANGEA=path of another binary. The exit code is 1 if a run failed;
its output is then in NAME.failed.
TEXT
}

out=page-out
parts=()
all=(distance postgres protocols loads faults predictions)
while [ $# -gt 0 ]; do
    case $1 in
    --out) out=${2:?--out takes a directory} && shift ;;
    --part)
        [[ " ${all[*]} " = *" ${2:-} "* ]] || { echo "no part ${2:-}; -h lists them" >&2; exit 2; }
        parts+=("$2")
        shift
        ;;
    -h | --help) usage; exit 0 ;;
    *) echo "there is no option $1; -h lists them" >&2; exit 2 ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
binary=${PANGEA:-$PWD/target/release/pangea}
[ -x "$binary" ] || { echo "$binary is missing: see -h" >&2; exit 2; }
mkdir -p "$out"

failed=0

# keep NAME COMMAND..: runs a command, and keeps its output under the name if it succeeds.
keep() {
    local name=$1
    shift
    [ ! -e "$out/$name.txt" ] || return 0
    # Not the loop's stdin.
    if "$@" </dev/null >"$out/$name.failed" 2>&1; then
        mv "$out/$name.failed" "$out/$name.txt"
    else
        failed=$((failed + 1))
        printf '%-36s failed: %s\n' "$name" "$(tail -n 1 "$out/$name.failed")"
        return 1
    fi
}

# run NAME ARGUMENTS..: runs pangea, and prints its last line, which has throughput and latencies.
run() {
    local name=$1
    shift
    keep "$name" "$binary" "$@" || return 0
    printf '%-36s %s\n' "$name" "$(tail -n 1 "$out/$name.txt")"
}

# system NAME: prints its options of `pangea bench` in a lab.
system() {
    case $1 in
    minerva | calvin) echo "--protocol $1 --via postgres" ;;
    *) echo "--baseline $1" ;;
    esac
}

# Clients are the best of the numbers that were tried before (docs/benchmarks/peers.md); Calvin has
# those of Minerva.
distance() {
    local load rtt name clients
    while read -r load rtt name clients; do
        case $load in
        tpcc) set -- --workload tpcc-nopay --warehouses 10 --own-region ;;
        ycsb) set -- --workload ycsb-a ;;
        skewed) set -- --workload ycsb-a --zipf 0.9 ;;
        esac
        # shellcheck disable=SC2046 # several options
        run "distance-$load-$rtt-$name" bench "$@" $(system "$name") --lab --rtt "$rtt" \
            --clients "$clients" --secs 8 --warmup 5 --repeats 3
    done <<'TABLE'
tpcc 0 minerva 600
tpcc 0 calvin 600
tpcc 0 postgres 24
tpcc 0 galera 24
tpcc 50 minerva 2500
tpcc 50 calvin 2500
tpcc 50 postgres 96
tpcc 50 galera 72
tpcc 200 minerva 6000
tpcc 200 calvin 6000
tpcc 200 postgres 288
tpcc 200 galera 216
ycsb 0 minerva 600
ycsb 0 calvin 600
ycsb 0 postgres 96
ycsb 0 etcd 128
ycsb 0 galera 12
ycsb 50 minerva 3000
ycsb 50 calvin 3000
ycsb 50 postgres 384
ycsb 50 etcd 512
ycsb 50 galera 192
ycsb 200 minerva 7000
ycsb 200 calvin 7000
ycsb 200 postgres 1200
ycsb 200 etcd 1500
ycsb 200 galera 600
skewed 50 minerva 3000
skewed 50 calvin 3000
skewed 50 postgres 384
skewed 50 etcd 512
skewed 50 galera 192
TABLE
}

postgres() {
    keep postgres env PANGEA="$binary" pangea/benches/postgres.sh || return 0
    cat "$out/postgres.txt"
}

protocols() {
    local protocol rtt
    for rtt in 0 50 100 200; do
        for protocol in minerva calvin; do
            run "protocols-saturated-$rtt-$protocol" bench --protocol "$protocol" --rtt "$rtt" \
                --workload tpcc-nopay --warehouses 8 --clients 6000 --secs 8 --warmup 4
            run "protocols-light-$rtt-$protocol" bench --protocol "$protocol" --rtt "$rtt" \
                --workload tpcc-nopay --warehouses 2 --clients 12 --secs 8 --warmup 4
        done
    done
}

loads() {
    local protocol
    for protocol in minerva calvin; do
        run "loads-copies-$protocol" bench --protocol "$protocol" --workload tpcc-nopay \
            --warehouses 8 --secs 8 --repeats 3 --rtt 0 --clients 3000
        run "loads-one-core-$protocol" bench --protocol "$protocol" --workload tpcc --warehouses 8 \
            --secs 8 --repeats 3 --via process --regions us-east --durability memory --cores 1 \
            --clients 500
        run "loads-two-cores-$protocol" bench --protocol "$protocol" --workload tpcc --warehouses 8 \
            --secs 8 --repeats 3 --via process --regions us-east --durability memory --cores 2 \
            --clients 500
        run "loads-open-$protocol" bench --protocol "$protocol" --secs 20 --workload tpcc-nopay \
            --warehouses 8 --rtt 50 --rate 14000 --clients 7000
    done
    run loads-partitions-calvin bench --protocol calvin --regions 1 --partitions 2 \
        --workload calvin-micro --shards 2 --remote 10 --hot 10000 --rows 1000000 --secs 8 \
        --warmup 4 --clients 8192 --repeats 3
}

faults() {
    local name region
    for region in region-1 region-3; do
        for name in minerva calvin postgres etcd galera; do
            # shellcheck disable=SC2046 # several options
            run "faults-$region-$name" bench --workload ycsb-a $(system "$name") --lab --rtt 50 \
                --rate 300 --clients 300 --warmup 5 --secs 30 --fault "kill:$region@8+5"
        done
    done
}

predictions() {
    local costs protocol
    for protocol in minerva calvin; do
        costs=$out/costs-$protocol.toml
        set -- --protocol "$protocol" --workload tpcc-nopay --rtt 50 --clients 4000
        run "predictions-calibrate-$protocol" calibrate "$@" --secs 10 --out "$costs"
        run "predictions-predicted-$protocol" sim --predict --costs "$costs" "$@" --secs 5 \
            --warmup 5 --shared-cores 2
        run "predictions-real-$protocol" bench "$@" --secs 8 --repeats 3
    done
}

for part in "${parts[@]}"; do "$part"; done
[ $failed = 0 ]
